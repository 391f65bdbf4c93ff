"""The agent of the `script` harness: a process that plays what a message says, line by line (docs/harness-script.md).

Rules: standard library only and few imports, for it is started with every session (`python -I -S`). One thread: whatever waits,
waits in `Wire.wait`, which hears interrupts, steering and the end of input meanwhile.
"""
