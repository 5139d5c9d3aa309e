"""Parts that several tasks are made of; none of these modules is a task."""
