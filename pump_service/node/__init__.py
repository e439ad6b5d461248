"""The Pump as a node of its cluster.

node_id        who this data directory is, and in which cluster
lifecycle      the states, and which may follow which
heartbeat      what the registry says of this node; `score` how attractive it is to writers
notify         Drainers that must hear of a new Pump
collector      when GC runs, and for which consumers
horizon        timestamps that are refused as from the future
shared         one question to the cluster for all who ask at once
"""
