"""Go's template language, as far as the templates of published models use it.

    template = parse("{{ range .Messages }}<{{ .Role }}>{{ .Content }}{{ end }}")
    prompt = execute(template, {"Messages": [...]})

A small interpreter of its own: Python never runs a template's code. Rendering is limited in steps,
seconds, depth and output. Text from outside keeps its marks (`tampu.chat.taint`).
Source: the documentation of Go's package text/template.
"""

from tampu.chat.gotemplate.execution import execute
from tampu.chat.gotemplate.nodes import Template, fields_used, until_field
from tampu.chat.gotemplate.parsing import parse
from tampu.chat.gotemplate.values import JsonList, JsonMap, Record

__all__ = [
    "JsonList",
    "JsonMap",
    "Record",
    "Template",
    "execute",
    "fields_used",
    "parse",
    "until_field",
]
