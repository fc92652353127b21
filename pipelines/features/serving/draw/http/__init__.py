"""What is served to others, for programs on this machine that speak OpenAI's HTTP interface and nothing else."""
