"""The security audit of a running server: asked as an attacker would ask, and read as its operator could.

Law: everything is found out from outside, by requests and by what the system says of the process; nothing is believed
of the configuration. A check that cannot be made says why; it is never counted as passed. Nothing is changed on the
server, and no secret that is found is printed.
"""
