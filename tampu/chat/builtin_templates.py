"""Built-in chat templates of families whose files may have none.

They are Jinja, rendered like any other (`tampu.chat.template`). The tokens and their places are the
families'; the sentences that introduce tools are ours, so a publisher's template is better. Two
sentences are the publishers', since models were trained on them: FunctionGemma's in front of its
tools, and Cogito's that turns reasoning on.
"""
# ruff: noqa: E501 - the lines are the templates'

from __future__ import annotations

from typing import Final

_TEXT: Final = """\
{%- macro text(content) %}
    {%- if content is string %}{{ content }}
    {%- else %}{% for part in content or [] if part.text %}{{ part.text }}{% endfor %}{% endif %}
{%- endmacro %}
{%- macro json(value) %}{{ value if value is string else value | tojson }}{% endmacro %}
"""

CHATML: Final = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# ChatML with tools and reasoning, with names for the parts in which its families differ.
_CHATML_TOOLS = (
    _TEXT
    + """\
{%- set has_system = messages and messages[0].role == 'system' %}
{%- set turns = messages[1:] if has_system else messages %}
BOS
{%- if has_system or tools %}
    {{- '<|im_start|>system\\n' ~ (text(messages[0].content) if has_system else '') }}
    {%- if tools %}{{- 'SPACE' if has_system }}{{- 'INTRODUCE' }}
        {%- for tool in tools %}{{- (TOOL | tojson) ~ ('' if loop.last else 'COMMA') }}{% endfor %}
        {{- 'EXPLAIN' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(user=-1) %}
{%- for message in turns if message.role == 'user' %}{% set ns.user = ns.user + 1 %}{% endfor %}
{%- for message in turns %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>RESPONDER' if loop.first or loop.previtem.role != 'tool' }}
        {{- '\\nRESPOND' ~ text(message.content) ~ 'RESPONDED' }}
        {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' }}
        REASONING
        {{- text(message.content) }}
        {%- for call in message.tool_calls or [] %}CALL{%- endfor %}
        {{- '<|im_end|>\\n' }}
        {%- if message.role == 'user' %}{% set ns.user = ns.user - 1 %}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{{- BEGIN }}{% endif %}
"""
)


def _named(template: str, **parts: str) -> str:
    for name in sorted(parts, key=len, reverse=True):  # CALLED before CALL
        template = template.replace(name, parts[name])
    return template


_QWEN = {
    "BOS": "", "SPACE": "\\n\\n", "TOOL": "tool", "COMMA": "\\n",
    "INTRODUCE": "# Tools\\n\\nThese functions may be called; each line has the signature of one:"
    "\\n<tools>\\n",
    "RESPONDER": "user", "RESPOND": "<tool_response>\\n", "RESPONDED": "\\n</tool_response>",
    "BEGIN": "''", "REASONING": "",
}  # fmt: skip
_HERMES = _QWEN | {
    "EXPLAIN": "\\n</tools>\\n\\nA call is JSON between tags, with its name and its arguments:\\n"
    '<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>',
    "CALL": """
            {{- '' if loop.first and not message.content else '\\n' }}
            {{- '<tool_call>\\n{"name": ' ~ (call.function.name | tojson) ~ ', "arguments": ' }}
            {{- json(call.function.arguments) ~ '}\\n</tool_call>' }}
        """,
}
_TAGS = _QWEN | {
    "EXPLAIN": "\\n</tools>\\n\\nA call has this form, and nothing comes behind it:\\n"
    "<tool_call>\\n<function=function_name>\\n<parameter=parameter_name>\\nvalue\\n</parameter>\\n"
    "</function>\\n</tool_call>",
    "CALL": """
            {{- '\\n' if not loop.first else '\\n\\n' if message.content else '' }}
            {{- '<tool_call>\\n<function=' ~ call.function.name ~ '>\\n' }}
            {%- for key, value in call.function.arguments.items() %}
                {{- '<parameter=' ~ key ~ '>\\n' ~ json(value) ~ '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        """,
}


def _reasoning(skipped: str) -> dict[str, str]:
    """Return the start of an answer with reasoning, or `skipped` without."""
    begin = f"('{skipped}' if enable_thinking is false else '<think>\\n')"
    reasoning = """{%- if message.reasoning_content and ns.user < 0 %}
            {{- '<think>\\n' ~ message.reasoning_content ~ '\\n</think>\\n\\n' }}
        {%- endif %}"""
    return {"BEGIN": begin, "REASONING": reasoning}


QWEN3_VL: Final = _named(_CHATML_TOOLS, **_HERMES)
QWEN3_VL_THINKING: Final = _named(_CHATML_TOOLS, **_HERMES | _reasoning(""))
QWEN3_CODER: Final = _named(_CHATML_TOOLS, **_TAGS)
QWEN35: Final = _named(_CHATML_TOOLS, **_TAGS | _reasoning("<think>\\n\\n</think>\\n\\n"))
NEMOTRON: Final = _named(_CHATML_TOOLS, **_TAGS | _reasoning("<think></think>"))
LFM2: Final = _named(
    _CHATML_TOOLS,
    BOS="{{- bos_token }}", SPACE="\\n", TOOL="tool.function", COMMA=", ",
    INTRODUCE="List of tools: <|tool_list_start|>[", EXPLAIN="]<|tool_list_end|>",
    RESPONDER="tool", RESPOND="<|tool_response_start|>", RESPONDED="<|tool_response_end|>",
    CALL="""
            {{- ('<|tool_call_start|>[' if loop.first else ',') ~ call.function.name ~ '(' }}
            {%- for key, value in call.function.arguments.items() %}
                {{- (',' if not loop.first) ~ key ~ '=' ~ (value | tojson) }}
            {%- endfor %}
            {{- ')' ~ (']<|tool_call_end|>' if loop.last) }}
        """,
    BEGIN="''", REASONING="",
)  # fmt: skip

GLM: Final = (
    _TEXT
    + """\
{{- '[gMASK]<sop>' }}
{%- if tools %}
    {{- '<|system|>\\n# Tools\\n\\nThese functions may be called; each line has the signature of one:' }}
    {{- '\\n<tools>\\n' }}
    {%- for tool in tools %}{{- (tool | tojson) ~ '\\n' }}{% endfor %}
    {{- '</tools>\\n\\nA call has a key and a value for each of its arguments:\\n' }}
    {{- '<tool_call>{function-name}<arg_key>{arg-key}</arg_key><arg_value>{arg-value}</arg_value>' }}
    {{- '...</tool_call>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|observation|>' if loop.first or loop.previtem.role != 'tool' }}
        {{- '<tool_response>' ~ text(message.content) ~ '</tool_response>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|assistant|>' ~ ('<think>' ~ message.reasoning_content if message.reasoning_content) }}
        {{- '</think>' ~ text(message.content) }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>' ~ call.function.name }}
            {%- for key, value in call.function.arguments.items() %}
                {{- '<arg_key>' ~ key ~ '</arg_key><arg_value>' ~ json(value) ~ '</arg_value>' }}
            {%- endfor %}
            {{- '</tool_call>' }}
        {%- endfor %}
    {%- else %}
        {{- '<|' ~ ('system' if message.role == 'system' else 'user') ~ '|>' ~ text(message.content) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' ~ ('</think>' if enable_thinking is false else '<think>') }}
{%- endif %}
"""
)

DEEPSEEK: Final = (
    _TEXT
    + """\
{{- bos_token }}
{%- for message in messages if message.role == 'system' %}
    {{- ('' if loop.first else '\\n\\n') ~ text(message.content) }}
{%- endfor %}
{%- if tools %}
    {{- '\\n\\n## Tools\\nThese tools may be called:\\n' }}
    {%- for tool in tools %}
        {{- '\\n### ' ~ tool.function.name ~ '\\nDescription: ' ~ (tool.function.description or '') }}
        {{- '\\n\\nParameters: ' ~ ((tool.function.parameters or {}) | tojson) ~ '\\n' }}
    {%- endfor %}
    {{- '\\nCalls have exactly this form, their arguments as JSON that fits the parameters, one call ' }}
    {{- 'right behind the other:\\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name' }}
    {{- '<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜><｜tool▁calls▁end｜>\\n' }}
{%- endif %}
{%- set ns = namespace(role='') %}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'tool' %}
        {{- '<｜tool▁output▁begin｜>' ~ text(message.content) ~ '<｜tool▁output▁end｜>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<｜Assistant｜></think>' if ns.role == 'user' }}{{- text(message.content) }}
        {%- if message.tool_calls %}
            {{- '<｜tool▁calls▁begin｜>' }}
            {%- for call in message.tool_calls %}
                {{- '<｜tool▁call▁begin｜>' ~ call.function.name ~ '<｜tool▁sep｜>' }}
                {{- json(call.function.arguments) ~ '<｜tool▁call▁end｜>' }}
            {%- endfor %}
            {{- '<｜tool▁calls▁end｜>' }}
        {%- endif %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- else %}
        {{- '<｜User｜>' ~ text(message.content) }}
    {%- endif %}
    {%- set ns.role = message.role %}
{%- endfor %}
{%- if add_generation_prompt and ns.role == 'user' %}
    {{- '<｜Assistant｜>' ~ ('<think>' if thinking else '</think>') }}
{%- endif %}
"""
)

COGITO: Final = (
    _TEXT
    + """\
{%- set has_system = messages and messages[0].role == 'system' %}
{%- set turns = messages[1:] if has_system else messages %}
{%- set system = text(messages[0].content) if has_system else '' %}
{%- set parts = ['Enable deep thinking subroutine.'] if enable_thinking else [] %}
{{- bos_token ~ (parts + ([system] if system else [])) | join('\\n\\n') }}
{%- if tools %}
    {{- ('\\n' if parts or system) ~ 'These functions may be called:\\n' }}
    {%- for tool in tools %}
        {{- '```json\\n' ~ (tool | tojson(indent=4)) ~ '\\n```\\n' }}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(role='') %}
{%- for message in turns %}
    {%- if message.role == 'tool' %}
        {{- '\\n' if ns.role == 'tool' else '<｜tool▁outputs▁begin｜>' }}
        {{- '<｜tool▁output▁begin｜>' ~ text(message.content) ~ '<｜tool▁output▁end｜>' }}
        {{- '<｜tool▁outputs▁end｜>' if loop.last or loop.nextitem.role != 'tool' }}
    {%- elif message.role == 'assistant' %}
        {{- '<｜Assistant｜>' ~ text(message.content) }}
        {%- if message.tool_calls %}
            {{- '<｜tool▁calls▁begin｜>' }}
            {%- for call in message.tool_calls %}
                {{- ('' if loop.first else '\\n') ~ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' }}
                {{- call.function.name ~ '\\n```json\\n' ~ json(call.function.arguments) }}
                {{- '\\n```<｜tool▁call▁end｜>' }}
            {%- endfor %}
            {{- '<｜tool▁calls▁end｜>' }}
        {%- endif %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- else %}
        {{- '<｜User｜>' ~ text(message.content) }}
    {%- endif %}
    {%- set ns.role = message.role %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<｜Assistant｜>' ~ ('<think>\\n' if enable_thinking) }}
{%- endif %}
"""
)

# The common parts of Gemma's two templates, with names for their tokens.
_GEMMA = (
    _TEXT
    + """\
{%- macro quoted(value) %}{{ 'QUOTE' ~ value ~ 'QUOTE' }}{% endmacro %}
{%- macro data(value) %}
    {%- if value is string %}{{ quoted(value) }}
    {%- elif value is boolean or value is none %}{{ value | tojson }}
    {%- elif value is mapping %}{{ '{' }}
        {%- for key, item in value | dictsort %}
            {{- (',' if not loop.first) ~ key ~ ':' ~ data(item) }}
        {%- endfor %}{{ '}' }}
    {%- elif value is iterable %}{{ '[' }}
        {%- for item in value %}{{ (',' if not loop.first) ~ data(item) }}{% endfor %}{{ ']' }}
    {%- else %}{{ value }}{% endif %}
{%- endmacro %}
{%- macro type(value) %}
    {%- if value is string %}{{ quoted(value | upper) }}
    {%- else %}{{ data(value | map('upper') | list) }}{% endif %}
{%- endmacro %}
{%- macro schema(value) %}
    {%- for key in ['description', 'enum', 'items', 'nullable', 'properties', 'required', 'type']
            if value.get(key) %}
        {%- set item = value.get(key) %}
        {{- (',' if not loop.first) ~ key ~ ':' }}
        {%- if key == 'items' %}{{ '{' ~ schema(item) ~ '}' }}
        {%- elif key == 'properties' %}{{ '{' }}
            {%- for name, property in item | dictsort %}
                {{- (',' if not loop.first) ~ name ~ ':{' ~ schema(property) ~ '}' }}
            {%- endfor %}{{ '}' }}
        {%- else %}{{ type(item) if key == 'type' else data(item) }}{% endif %}
    {%- endfor %}
{%- endmacro %}
{%- macro called(calls, message, index) %}
    {%- set known = calls | selectattr('id', 'defined') | selectattr('id', 'equalto', message.tool_call_id) | list %}
    {%- if message.name %}{{ message.name }}
    {%- elif message.tool_call_id and known %}{{ known[0].function.name }}
    {%- elif index < calls | length %}{{ calls[index].function.name }}
    {%- else %}{{ 'unknown' }}{% endif %}
{%- endmacro %}
{%- set has_system = messages and messages[0].role in ('system', 'developer') %}
{%- set turns = messages[1:] if has_system else messages %}
{{- bos_token }}
{%- if has_system or tools or enable_thinking and 'THINK' %}
    {{- 'TURNSYSTEM\\n' ~ ('THINK' if enable_thinking) }}
    {%- if has_system %}{{- text(messages[0].content) | trim }}{% endif %}
    {%- if tools and 'TOOLS' %}{{- ('\\n' if has_system) ~ 'TOOLS' }}{% endif %}
    {%- for tool in tools or [] %}
        {{- 'DECLARE' ~ 'declaration:' ~ tool.function.name ~ '{description:' }}
        {{- quoted(tool.function.description or '') }}
        {%- if tool.function.parameters %}
            {{- ',parameters:{' ~ schema(tool.function.parameters) ~ '}' }}
        {%- endif %}
        {{- '}DECLARED' }}
    {%- endfor %}
    {{- 'END\\n' }}
{%- endif %}
{%- set ns = namespace(calls=[], index=0, is_open=false, role='', user=-1) %}
{%- for message in messages if message.role == 'user' %}{% set ns.user = ns.user + 1 %}{% endfor %}
{%- for message in turns %}
    {%- if message.role == 'tool' %}
        {{- 'RESPOND' ~ 'response:' ~ called(ns.calls, message, ns.index) ~ '{value:' }}
        {{- quoted(text(message.content)) ~ '}RESPONDED' }}
        {%- set ns.index = ns.index + 1 %}
    {%- else %}
        {%- if ns.is_open and message.role != 'assistant' %}{{- 'END\\n' }}{% endif %}
        {%- if not (ns.is_open and message.role == 'assistant') %}
            {{- 'TURN' ~ ('model' if message.role == 'assistant' else message.role) ~ '\\n' }}
        {%- endif %}
        {%- if message.role == 'assistant' %}
            {%- if message.reasoning_content and ns.user < 0 and 'THINK' %}
                {{- '<|channel>thought\\n' ~ message.reasoning_content ~ '\\n<channel|>' }}
            {%- endif %}
            {{- text(message.content) | trim }}
            {%- for call in message.tool_calls or [] %}
                {{- 'CALLcall:' ~ call.function.name ~ data(call.function.arguments) ~ 'CALLED' }}
            {%- endfor %}
            {%- set ns.calls = message.tool_calls or [] %}{% set ns.index = 0 %}
        {%- else %}
            {%- if message.role == 'user' %}{% set ns.user = ns.user - 1 %}{% endif %}
            {{- text(message.content) | trim ~ 'END\\n' }}
        {%- endif %}
        {%- set ns.is_open = message.role == 'assistant' %}
    {%- endif %}
    {%- set ns.role = message.role %}
{%- endfor %}
{%- if ns.is_open and ns.role != 'tool' %}{{- 'END\\n' }}{% endif %}
{%- if add_generation_prompt %}
    {%- if ns.role != 'tool' %}{{- 'TURNmodel\\n' ~ ('NO_REASONING' if not enable_thinking) }}
    {%- elif enable_thinking and 'THINK' %}{{- '<|channel>thought\\n' }}{% endif %}
{%- endif %}
"""
)

_GEMMA4 = {
    "QUOTE": '<|"|>', "TURN": "<|turn>", "SYSTEM": "system", "END": "<turn|>",
    "THINK": "<|think|>\\n", "TOOLS": "", "DECLARE": "<|tool>", "DECLARED": "<tool|>",
    "CALL": "<|tool_call>", "CALLED": "<tool_call|>", "RESPOND": "<|tool_response>",
    "RESPONDED": "<tool_response|>", "NO_REASONING": "",
}  # fmt: skip
GEMMA4: Final = _named(_GEMMA, **_GEMMA4)
GEMMA4_LARGE: Final = _named(_GEMMA, **_GEMMA4 | {"NO_REASONING": "<|channel>thought\\n<channel|>"})
FUNCTIONGEMMA: Final = _named(
    _GEMMA,
    QUOTE="<escape>", TURN="<start_of_turn>", SYSTEM="developer", END="<end_of_turn>", THINK="",
    TOOLS="You can do function calling with the following functions:",
    DECLARE="<start_function_declaration>", DECLARED="<end_function_declaration>",
    CALL="<start_function_call>", CALLED="<end_function_call>",
    RESPOND="<start_function_response>", RESPONDED="<end_function_response>", NO_REASONING="",
)  # fmt: skip

# By the names of Ollama's renderers.
RENDERERS: Final[dict[str, str]] = {
    "cogito": COGITO,
    "deepseek3.1": DEEPSEEK,
    "functiongemma": FUNCTIONGEMMA,
    "gemma4": GEMMA4,
    "gemma4-large": GEMMA4_LARGE,
    "gemma4-small": GEMMA4,
    "glm-4.7": GLM,
    "lfm2": LFM2,
    "lfm2-thinking": LFM2,
    "nemotron-3-nano": NEMOTRON,
    "olmo3": CHATML,
    "olmo3-32b-think": CHATML,
    "olmo3-think": CHATML,
    "olmo3.1": CHATML,
    "qwen3-coder": QWEN3_CODER,
    "qwen3-vl-instruct": QWEN3_VL,
    "qwen3-vl-thinking": QWEN3_VL_THINKING,
    "qwen3.5": QWEN35,
}
