"""Conformance cases of the op table, one module for each family of `msc_core/ops`.

`CASES` of a module: row -> [(torch module, inputs)], at least one for each row and for each variant of its attributes.
`DIRECT`: row -> [(inputs, attributes, what it should compute)] for forms that no torch module has.
"""
