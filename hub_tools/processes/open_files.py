"""How many files a peer may have open: hivemind keeps pipes and shared memory of many processes."""

MOST_OPEN_FILES = 65_536


def open_files_limit() -> int:
    """Return the number of files that a process may open after `raise_open_files`; Windows sets no such limit."""
    try:
        import resource
    except ImportError:
        return MOST_OPEN_FILES
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else hard


def raise_open_files() -> None:
    """Let this process and its children open as many files as the system allows them."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(open_files_limit(), MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
