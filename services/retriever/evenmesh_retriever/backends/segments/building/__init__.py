"""Build, merge and publish segments."""
