"""Generate the reference pages of docs/reference from the code.

python -m tests.docs.reference
"""
