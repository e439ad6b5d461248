"""The Pump's own gRPC server over HTTP/2. It knows nothing of what it serves, and runs on one event loop.

Two halves. `http2` is the protocol of one connection: bytes and a time in, events and bytes out. It imports no loop, no
socket and no clock (`make check` looks). The files here are the shell: sockets, timers, and what handlers run on.

In the order of reading:

    limits       what peers may do: every bound on memory and time
    group        what handlers and the door hand each other: requests in columns, answers, refusals
    http2/       the protocol; its own `__init__` says in which order
    server       registration, life, and what all connections share
    sniff, tls   the first bytes of a connection say who serves it
    connection   one connection on the loop: turns, pauses, ends
    routes       which handler a path has, and what a request's header fields say
    turn         groups of calls: what goes to a handler together, and who waits for whom
    calls        calls with a stream of their own: `messages` out of DATA, deadlines, refusals
    handlers     those of a servicer's method: a task and its context
    assembly     how many bytes of incomplete requests are held, over all connections
    deadlines    one timer for all deadlines

A call of a group method whose frames came whole is never an object: it is a row in a `http2.batch`, from the read to
the answer. Any other is a `Call`.
"""
