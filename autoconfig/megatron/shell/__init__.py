"""Launch scripts in bash, read to the argument list that they hand over; nothing is run. It knows nothing of Megatron.

`script` is the door (`read_script`, `read_array`, `follow`), `planning.work` the one budget. bashkit 0.20.1, a sandboxed
bash, was tried in its place: of the 139 public scripts of the tests it gives the same words for 64, and for 76 with a stand-in
for each variable that a file does not set. Of a condition that nothing decides it takes one way, where both are read here, and
no word has a place in the file, which `check --apply-to` edits. What no public script uses (docs/check.md lists it) is asked
for, or refused with a sentence.
"""
