"""Who may do what: tokens, and the log of who did it. Shared by the server and the command line."""
