"""What suits a machine: devices, threads, the size of micro-batches and the memory, measured while it trains."""
