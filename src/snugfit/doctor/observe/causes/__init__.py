"""The way from the line at which a pitfall was seen to the statement that causes it."""
