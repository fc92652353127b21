"""What the embedded Hub holds, durably: accounts, repositories, commits, files. May import `protocol`."""
