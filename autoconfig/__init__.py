"""The application: the space of plans, search and ranking, import and export of configs, the report and the command line.

One layer, `autoconfig.training.answer`, serves the command line and the HTTP interface: they parse, call, render.
"""
