"""Where the models of a generator run: one host is chosen by the settings, and only its libraries load."""
