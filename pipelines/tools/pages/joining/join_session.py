"""One machine's part in a run, controlled from a page or a notebook: check, start, pause, stop."""

import dataclasses
import logging
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx2

from hub_tools.one_line_errors import explain_error
from hub_tools.places import is_repository_name
from hub_tools.processes.process_group import START_AGAIN_EXIT_CODE
from pipelines.features.publishing.metrics.credit.standing import read_standing
from pipelines.tools.doctor.check_result import FAILED_EXIT_CODE, WARNED_EXIT_CODE
from pipelines.tools.pages.joining import join_view
from pipelines.tools.pages.joining.command_child import CommandChild, cause_of_end, for_people
from pipelines.tools.pages.joining.join_settings import JoinSettings
from pipelines.tools.pages.joining.join_view import JoinView, after_event
from pipelines.tools.pages.joining.run_profile import RunProfile

logger = logging.getLogger(__name__)

SECONDS_TO_STOP = 30.0
"""A trainer that was asked to leave is killed after this time."""

SECONDS_TO_STOP_AT_SHUTDOWN = 8.0
SECONDS_BETWEEN_EVENTS = 1.0
SECONDS_BETWEEN_STANDINGS = 60.0
ANONYMOUS = "anonymous"
"""What `join` calls a user without a token."""

CHECKS_DONE = (0, FAILED_EXIT_CODE, WARNED_EXIT_CODE)
USER_ERRORS = (OSError, ValueError, httpx2.HTTPError)


class JoinSession:
    """Runs at most one trainer, or one check of the machine. All methods may be called from any thread.

    Use as a context manager: with the block ends what it has started. The Hub token is kept in memory as long as the
    trainer lives, to start it again when its run begins a new generation.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._view, self._version = JoinView(), 0
        self._child: CommandChild | None = None
        self._learnt = "", 0.0
        """The run that was asked for last, and when."""
        self._is_learning = False

        self._number = 0
        """Number of the current child; events of an abandoned one are ignored."""

    def __enter__(self) -> "JoinSession":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def view(self) -> JoinView:
        """Return the current view."""
        return self._view

    def learn_run(self, repository: str) -> None:
        """Read what is published of a run, in the background; not again within a minute, nor another one's while a
        trainer is at work.
        """
        with self._changed:
            now, is_other = self._clock(), repository != self._view.repository
            is_known = self._learnt[0] == repository and now - self._learnt[1] < SECONDS_BETWEEN_STANDINGS
            if is_known or not is_repository_name(repository) or (self._view.is_alive and is_other):
                return
            self._learnt = repository, now
            if not self._is_learning:
                self._is_learning = True
                threading.Thread(target=self._learn, daemon=True, name="run-profile").start()

    def _learn(self) -> None:
        """Read the run that was asked for last, until that one has been read."""
        profile: RunProfile | None = None
        while True:
            with self._changed:
                repository = self._learnt[0]
                if profile is not None and profile.repository == repository:
                    self._is_learning = False
                    self._change(profile=profile)
                    return
            try:
                profile = RunProfile.read(repository, self._clock())
            except USER_ERRORS as error:
                profile = RunProfile.unreachable(repository, explain_error(error))
            except Exception:  # whatever a stranger has published
                logger.exception("%s cannot be understood.", repository)
                profile = RunProfile.unreachable(repository, "What is there cannot be understood.")

    def wait_for_change(self, version: int, seconds: float) -> int:
        """Return the number of the current view as soon as it is not `version`, or after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, seconds)
            return self._version

    def check(self, settings: JoinSettings, token: str | None) -> None:
        """Check this machine for a run; does nothing while a check is running.

        Raises:
            ValueError: a trainer is running, whose memory and ports would distort the check.
            OSError: the process cannot be started.
        """
        with self._changed:
            if self._view.is_alive:
                raise ValueError("The trainer is running; stop it before checking the machine.")
            if self._view.is_checking:
                return
            self._spawn(settings.doctor_arguments(), token, self._examination_ended)
            self._change(
                is_checking=True, looking_at="", checks=(), check_problem="", repository=settings.repository, lines=()
            )

    def start(self, settings: JoinSettings, token: str | None) -> None:
        """Start the trainer; does nothing while there is one. A running check is aborted.

        Raises OSError if the process cannot be started.
        """
        with self._changed:
            if self._view.is_alive:
                return
            self._give_up_examination()
            same_run = self._view.repository == settings.repository
            profile = self._view.profile
            kept = dict(
                profile=profile if profile is not None and profile.repository == settings.repository else None,
                earlier_samples=self._view.all_samples if same_run else 0,
                standing=self._view.standing if same_run else None,
                checks=self._view.checks if same_run else (),
            )
            self._set(JoinView(repository=settings.repository, **kept))
            self._start_trainer(settings, token)

    def pause(self) -> None:
        """Pause the trainer after the current micro-batch; the other peers do not wait for it.

        Raises:
            ValueError: there is no trainer that can be paused now.
        """
        with self._changed:
            if self._view.phase in join_view.RESTING:
                return
            if self._view.phase not in join_view.WORKING or self._child is None:
                raise ValueError("There is no running trainer to pause.")
            self._child.send_signal(signal.SIGUSR1)
            self._change(phase=join_view.PAUSING)

    def resume(self) -> None:
        """Resume the trainer. Raises ValueError if none is paused."""
        with self._changed:
            if self._view.phase in join_view.WORKING:
                return
            if self._view.phase not in join_view.RESTING or self._child is None:
                raise ValueError("There is no paused trainer to resume.")
            self._child.send_signal(signal.SIGUSR2)
            self._change(phase=join_view.RESUMING)

    def stop(self, seconds: float = SECONDS_TO_STOP) -> None:
        """Have the trainer leave the run cleanly, without waiting for it; after `seconds` it is killed."""
        with self._changed:
            self._give_up_examination()
            if not self._view.is_alive or self._view.phase == join_view.STOPPING or self._child is None:
                return
            self._change(phase=join_view.STOPPING, message="")
            threading.Thread(target=self._child.stop, args=(seconds,), daemon=True, name="stop").start()

    def close(self) -> None:
        """Stop what was started, and wait for it to end."""
        self.stop(SECONDS_TO_STOP_AT_SHUTDOWN)
        if (child := self._child) is not None:
            child.ended.wait(2 * SECONDS_TO_STOP_AT_SHUTDOWN)

    def _start_trainer(self, settings: JoinSettings, token: str | None) -> None:
        arguments = [*settings.join_arguments(), "--event-seconds", str(SECONDS_BETWEEN_EVENTS)]
        self._spawn(arguments, token, partial(self._trainer_ended, settings, token))
        self._change(phase=join_view.STARTING, message="", started=self._clock())

    def _spawn(self, arguments: list[str], token: str | None, on_end: Callable[[int], None]) -> None:
        """Start a command; its events wait for the lock that the caller holds."""
        self._number += 1
        number = self._number

        def if_it_counts(hear: Callable[[Any], None]) -> Callable[[Any], None]:
            def hear_if_it_counts(said: object) -> None:
                with self._changed:
                    if number == self._number:
                        hear(said)

            return hear_if_it_counts

        self._child = CommandChild(
            arguments,
            token,
            on_event=if_it_counts(partial(self._hear, token)),
            on_line=if_it_counts(self._hear_line),
            on_end=if_it_counts(on_end),
        )

    def _hear(self, token: str | None, event: dict[str, object]) -> None:
        self._set(after_event(self._view, event))
        if event.get("event") == "joined" and self._view.username != ANONYMOUS:
            threading.Thread(
                target=self._follow_standing, args=(self._child, token), daemon=True, name="standing"
            ).start()

    def _hear_line(self, line: str) -> None:
        if text := for_people(line):
            self._set(self._view.with_line(text))

    def _examination_ended(self, code: int) -> None:
        self._child = None
        problem = "" if code in CHECKS_DONE else cause_of_end(code, self._view.lines)
        self._change(is_checking=False, looking_at="", check_problem=problem)

    def _trainer_ended(self, settings: JoinSettings, token: str | None, code: int) -> None:
        self._child = None
        was_stopped = self._view.phase == join_view.STOPPING
        self._change(samples_per_second=None, num_peers=None)
        if was_stopped:
            self._change(phase=join_view.STOPPED)
        elif code == START_AGAIN_EXIT_CODE:
            self._change(earlier_samples=self._view.all_samples, num_samples=0)
            try:
                self._start_trainer(settings, token)
            except OSError as error:
                self._change(phase=join_view.FAILED, message=explain_error(error))
        elif code == 0 or self._view.phase == join_view.FINISHED:
            self._change(phase=join_view.FINISHED)
        else:
            self._change(phase=join_view.FAILED, message=cause_of_end(code, self._view.lines))

    def _give_up_examination(self) -> None:
        if self._view.is_checking and self._child is not None:
            self._number += 1
            self._change(is_checking=False, looking_at="", check_problem="Aborted before they were done.")
            threading.Thread(target=self._child.kill, daemon=True, name="give-up").start()

    def _follow_standing(self, trainer: CommandChild, token: str | None) -> None:
        while not trainer.ended.is_set():
            view = self._view
            try:
                standing = read_standing(view.repository, view.username, token)
            except USER_ERRORS as error:
                logger.info("The leaderboard cannot be read: %s", explain_error(error))
            else:
                with self._changed:
                    self._change(standing=standing)
            trainer.ended.wait(SECONDS_BETWEEN_STANDINGS)

    def _change(self, **values: Any) -> None:
        self._set(dataclasses.replace(self._view, **values))

    def _set(self, view: JoinView) -> None:
        with self._changed:
            self._view, self._version = view, self._version + 1
            self._changed.notify_all()
