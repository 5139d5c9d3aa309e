"""Parts that several commands are made of; none of these modules is a command."""
