"""What the dialects share on the authors' side: text with positions, problems, durations, graphs.

Pure, like the dialects: text in, values out. Reading files is the caller's business.
"""
