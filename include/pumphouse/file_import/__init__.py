"""Into an archive of its own, from files that a Drainer wrote: `pumphouse archive import`.

- **Exact or refused**: what files do not say (a schema before their first DDL, the zone of TIMESTAMPs) is asked for,
  and what cannot be known is refused with its file and byte.
- **By columns**: events are walked and rewritten by kernels; no object is made for a row.
- **Once**: a window appears by a conditional put and names the last transaction that it took, which has to come again.
  So an import that was killed goes on where it was, and two at once make one archive.
"""
