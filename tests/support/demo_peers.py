"""Peers of a demo that follow a script instead of training: small programs that write the events of real ones."""

import sys
from dataclasses import dataclass, field

from pipelines.tools.demo.stages import Stages

PRELUDE = """
import json, signal, sys
def say(**values):
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps(values) + "\\n")
def look(epoch, held=0, published=0):
    say(swarm_epoch=epoch, held_epoch=held, published_epoch=published, num_trainers=2, summary=None)
def step(epoch):
    say(event="step", epoch=epoch, ended_epoch=True, num_samples=32)
def fail(words):
    sys.exit(words)
stay = signal.pause
"""


@dataclass
class ScriptedStages(Stages):
    """Starts scripts in the place of peers: those of a log's name one after another, the last one again and again."""

    scripts: dict[str, list[str]] = field(default_factory=dict)

    def start(self, *command, token="", log_name, keep_output=False):
        scripts = self.scripts[log_name]
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        events = command[command.index("--events") + 1]
        return self.start_program(
            [sys.executable, "-c", PRELUDE + script, events], token=token, log_name=log_name, keep_output=keep_output
        )
