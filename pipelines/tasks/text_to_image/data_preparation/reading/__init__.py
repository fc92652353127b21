"""What is read of a sample besides its picture: its caption and its labels, in any spelling."""
