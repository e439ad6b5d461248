"""Pull streams: what each has sent and waits for, and the memory that all of them share (`pullroom`)."""
