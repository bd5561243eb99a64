"""What an operator's programs ask of the servers, and how they say it."""
