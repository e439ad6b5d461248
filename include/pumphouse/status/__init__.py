"""How it all stands, in one look: archive, Pumps, targets, who holds what, and the next command to type.

`look.look` asks everything at once and waits for nothing longer than a moment; `report` has the frozen answer, which a
command, a task or a page may show; `findings` says what of it wants a hand.
"""
