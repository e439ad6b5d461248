"""A write's way from a request to the store's queue.

payloads       where each payload lies in a request, by kernels; `convert` one by one, through protobuf
ingest         the checks, in the Go Pump's order
submit         the bytes that wait, and the answers that cross back to the event loop
fakes          the binlogs that the Pump writes by itself, so that the watermark moves
"""
