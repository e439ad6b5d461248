"""HTTP/2 (RFC 9113) for one connection of a server, without input or output: as `h2` does it, for calls by the group.

`protocol.Http2` is all of it. `receive(data, now)` gives `events`; `take_batches()` gives the calls that came whole.
`answers`, and `output` for what has a stream, make the bytes that `output.take()` gives.

In the order of reading, with the one owner of each piece of state:

    frames       numbers, bytes and faults; `Rest`: the frame that is not complete
    streams      which streams are open or were, and what each has to send (`Streams`, `Stream`)
    windows      what the peer may send (`Windows`)
    output       what the peer takes, and what goes out to it (`Output`); `replies`: its header blocks
    events       what a peer has done to a stream
    protocol     the loop over frames, and the calls that it takes itself
    table        the peer's dynamic table (HPACK), and the kernel that reads header blocks by it
    headers      what header blocks mean
    incoming     frames of streams, rule by rule; `blocks`: header blocks in parts
    control      frames of the connection; `floods`: how many of them that cost nothing
    batch        calls of a turn in columns; `runs`, `lean`: the kernel that fills them
    answers      what calls are answered with, all of a batch at once
"""
