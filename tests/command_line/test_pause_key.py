"""The key that pauses: it reaches a worker that can pause, and the terminal is as before after every end."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

WORKER = """
import signal, time
for number, said in ((signal.SIGUSR1, "paused"), (signal.SIGUSR2, "resumed")):
    signal.signal(number, lambda *_, said=said: print(said, flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.05)  # a signal that comes just before `signal.pause` would wait for the next one
"""
COMMAND = f"""
import os, subprocess, sys
from pipelines.command_line.terminal.pause_key import pausing_by_key
with pausing_by_key():
    worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}], start_new_session=True)
    print("command", os.getpid(), worker.pid, flush=True)
    worker.wait()
"""
SHELL = f"""
import os, signal, subprocess, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first terminal that a session's leader opens is the session's
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
command = subprocess.Popen([sys.executable, "-c", {COMMAND!r}], process_group=0)
signal.signal(signal.SIGUSR1, lambda *_: os.tcsetpgrp(0, command.pid))
if sys.argv[1] == "foreground":
    os.tcsetpgrp(0, command.pid)
print("started", flush=True)
code = command.wait()
os.tcsetpgrp(0, os.getpid())
print("ended", flush=True)
signal.pause()
"""


class Terminal:
    """A terminal with a shell that has started the command."""

    def __init__(self, place):
        self.master, self.slave = os.openpty()
        self.before = termios.tcgetattr(self.slave)
        ends = dict(stdin=self.slave, stdout=self.slave, stderr=self.slave)
        self.shell = subprocess.Popen([sys.executable, "-c", SHELL, place], start_new_session=True, **ends)
        self.text = ""

    def wait_for(self, word):
        deadline = time.monotonic() + 60
        while word not in self.text:
            assert time.monotonic() < deadline, f"no {word!r} in {self.text!r}"
            self.read(0.1)
        self.text = self.text.partition(word)[2]

    def read(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            self.text += os.read(self.master, 4096).decode()

    def command_and_worker(self):
        self.wait_for("command ")
        while not self.text.endswith("\n") and "\n" not in self.text:
            self.read(0.1)
        return [int(word) for word in self.text.split()[:2]]

    def wait_for_mode(self, is_as_before):
        deadline = time.monotonic() + 60
        while (termios.tcgetattr(self.slave) == self.before) != is_as_before:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def start():
    with contextlib.ExitStack() as stack:

        def begin(place):
            terminal = Terminal(place)
            for descriptor in (terminal.master, terminal.slave):
                stack.callback(os.close, descriptor)
            stack.callback(terminal.shell.wait)
            stack.callback(terminal.shell.kill)
            terminal.command, terminal.worker = terminal.command_and_worker()
            stack.callback(kill, terminal.worker)
            terminal.wait_for("ready")
            return terminal

        yield begin


def kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("ends", ["by itself", "by SIGKILL"])
def test_the_key_pauses_and_resumes_and_the_terminal_is_as_before_however_the_command_ends(start, ends):
    terminal = start("foreground")
    terminal.wait_for_mode(is_as_before=False)
    os.write(terminal.master, b"xp")
    terminal.wait_for("paused")
    os.write(terminal.master, b"p")
    terminal.wait_for("resumed")
    kill(terminal.worker if ends == "by itself" else terminal.command)
    terminal.wait_for("ended")
    terminal.wait_for_mode(is_as_before=True)


def test_in_the_background_the_terminal_is_left_alone_and_back_in_the_foreground_the_key_counts(start):
    terminal = start("background")
    os.write(terminal.master, b"p\n")
    terminal.read(1.0)
    assert "paused" not in terminal.text and termios.tcgetattr(terminal.slave) == terminal.before
    termios.tcflush(terminal.slave, termios.TCIFLUSH)
    terminal.shell.send_signal(signal.SIGUSR1)
    terminal.wait_for_mode(is_as_before=False)
    os.write(terminal.master, b"p")
    terminal.wait_for("paused")


def test_ctrl_z_gives_the_terminal_back_and_the_key_counts_again_afterwards(start):
    terminal = start("foreground")
    terminal.wait_for_mode(is_as_before=False)
    os.write(terminal.master, b"\x1a")
    terminal.wait_for_mode(is_as_before=True)
    os.kill(terminal.command, signal.SIGCONT)
    terminal.wait_for_mode(is_as_before=False)
    os.write(terminal.master, b"p")
    terminal.wait_for("paused")


def test_without_a_terminal_nothing_changes():
    command = subprocess.Popen([sys.executable, "-c", COMMAND], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    with command:
        kill(int(command.stdout.readline().split()[2]))
        assert command.wait(60) == 0
