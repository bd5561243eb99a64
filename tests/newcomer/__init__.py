"""First uses of Mien, from an empty folder, as the guides tell them: how many commands they take, and that all work."""
