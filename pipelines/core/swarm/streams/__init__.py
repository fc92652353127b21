"""Ask and answer streams between two peers, on hivemind's libp2p, with a reader that notices at once who has gone.

hivemind 1.1.12's own streams wait for their writer when the other side has died, so the caller learns nothing until its
own time-out, and its expert server stops for everybody on one malformed request. Here both ends read length-prefixed
frames themselves: a closed connection ends the conversation at once, a stopped machine is noticed by its silence, and
nothing that a stranger sends reaches a service before its size, form and version have been checked.
"""
