"""What a stranger has put into a repository: bounded in bytes before it is taken, and in depth and size when read."""
