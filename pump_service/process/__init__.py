"""One running Pump: what starts, serves and ends, and in which order. It stands above all other rooms.

app            the order of a start and of an end; `stages` wires the parts
front          the door or stock grpcio, with its ports (`listen`); `descriptors` what happens when they run out
drain          what a Pump that leaves waits for
compiler       kernels of a first start, in a process of its own; `warm`, `warm_reads` call each once
footprint      the process's memory; `store_samples`, `push` are its metrics
"""
