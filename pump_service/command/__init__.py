"""The Pump's own command, and the flags and files of the Go Pump that it takes."""
