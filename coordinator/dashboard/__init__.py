"""The coordinator's dashboard: a program of its own that reads the store and shows it in a browser.

It never runs in the process that runs rounds, opens the store for reading only, and reads no key but that of its own
TLS certificate. `views` turn the store into typed records of plain text (`sections`), one template draws them, `guard`,
`accounts` and `throttle` keep strangers out, `live` tells browsers that something changed.
"""
