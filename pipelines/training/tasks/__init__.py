"""What can be trained: one folder a task. The engine never imports these; it is handed one."""
