"""What can be trained: one folder per task. The engine never imports these; it is given one."""
