"""Chat templates in the styles of the families, written for these tests, and conversations."""
# ruff: noqa: E501 - the lines are the templates'

from __future__ import annotations

from typing import Any

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
    {{- "# Functions\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string
           and not message.content.startswith('<tool_response>') %}
        {%- set ns.searching = false %}{% set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant' }}
        {%- if loop.index0 > ns.last and thought %}
            {{- '\\n<think>\\n' ~ thought.strip() ~ '\\n</think>\\n' }}
        {%- endif %}
        {{- '\\n' + content.lstrip('\\n') }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{% set call = call.function %}{% endif %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{% set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{% set date_string = "26 Jul 2024" %}{% endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- 'Respond as {"name": function name, "parameters": dictionary}.\\n\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{% endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}{{- message.content }}{% endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{% set loop_messages = messages[1:] %}
{%- else %}{% set loop_messages = messages %}{% endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS][" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val|tojson }}{% endif %}
                    {%- if not loop.last %}{{- ", " }}{% endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{% else %}{{- "][/AVAILABLE_TOOLS]" }}{% endif %}
            {%- endfor %}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST]" + message["content"] + "[/INST]" }}{% endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS][" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}{{- ', "id": "' + (tool_call.id | default('123456789')) + '"}' }}
            {%- if not loop.last %}{{- ", " }}{% else %}{{- "]" + eos_token }}{% endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] in ["tool_results", "tool"] %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content|string + "}[/TOOL_RESULTS]" }}
    {%- else %}{{- raise_exception("Unknown role: " ~ message.role) }}{% endif %}
{%- endfor %}
"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '

' %}{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{%- for message in rest | rejectattr('role', 'equalto', 'tool') -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first if loop.first else '') }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\\n'}}{%- endif -%}
"""

HARMONY = """\
{%- macro type_of(spec, required) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] and spec['items']['type'] -%}{{ spec['items']['type'] + '[]' }}
        {%- else -%}any[]{%- endif -%}
    {%- elif spec.enum -%}{{ '"' + spec.enum | join('" | "') + '"' }}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string -%}
        {{ spec.type | join(" | ") }}
    {%- elif spec.type == "object" -%}
        {%- if spec.properties -%}{{ "{" }}
            {%- for name, inner in spec.properties.items() -%}
                {{ name }}{%- if name not in (spec.required or []) -%}?{%- endif -%}{{ ": " }}
                {{ type_of(inner, spec.required or []) }}{%- if not loop.last -%}, {%- endif -%}
            {%- endfor -%}{{ "}" }}
        {%- else -%}object{%- endif -%}
    {%- else -%}{{ spec.type or 'any' }}{%- endif -%}
{%- endmacro -%}
{%- macro functions(tools) -%}
    {{- "namespace functions {\\n\\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + (tool.description | default('')) + "\\n" }}{{- "type " + tool.name + " = " }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "(_: {\\n" }}
            {%- for name, spec in tool.parameters.properties.items() %}
                {%- if spec.description %}{{- "// " + spec.description + "\\n" }}{% endif %}
                {{- name }}{%- if name not in (tool.parameters.required or []) %}{{- "?" }}{% endif %}
                {{- ": " }}{{- type_of(spec, tool.parameters.required or []) }}
                {%- if spec.default is defined %}
                    {%- if spec.default is string %}{{- ' // default: "' + spec.default + '"' }}
                    {%- else %}{{- ' // default: ' + spec.default|tojson }}{% endif %}
                {%- endif %}
                {{- ",\\n" }}
            {%- endfor %}
            {{- "}) => any;\\n\\n" }}
        {%- else %}{{- "() => any;\\n\\n" }}{% endif %}
    {%- endfor %}
    {{- "} // namespace functions" }}
{%- endmacro -%}
{%- if reasoning_effort is not defined %}{% set reasoning_effort = "medium" %}{% endif %}
{{- "<|start|>system<|message|>Reasoning: " + reasoning_effort + "\\n\\n# Valid channels: analysis<|end|>" }}
{%- if messages[0].role in ("developer", "system") or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if messages[0].role in ("developer", "system") %}
        {{- "# Instructions\\n\\n" + messages[0].content + "\\n\\n" }}
    {%- endif %}
    {%- if tools %}{{- "# Tools\\n\\n" }}{{- functions(tools) }}{% endif %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in messages %}
    {%- if loop.first and message.role in ("developer", "system") %}{% continue %}{% endif %}
    {%- if message.role == 'assistant' %}
        {%- if message.tool_calls %}
            {%- if message.thinking %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}{% set tool_call = tool_call.function %}{% endif %}
            {{- "<|start|>assistant to=" }}{{- "functions." + tool_call.name + "<|channel|>commentary " }}
            {{- (tool_call.content_type if tool_call.content_type is defined else "json") + "<|message|>" }}
            {{- tool_call.arguments|tojson }}{{- "<|call|>" }}
            {%- set last_tool_call.name = tool_call.name %}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" }}
            {%- generation %}{{- message.content + ("<|return|>" if loop.last else "<|end|>") }}{% endgeneration %}
            {%- set last_tool_call.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {{- "<|start|>functions." + (last_tool_call.name or "x") }}
        {{- " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- else %}{{- "<|start|>user<|message|>" + message.content|string + "<|end|>" }}{% endif %}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""

DEEPSEEK = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(is_first=false, is_tool=false, system='', first_system=true) -%}
{%- for message in messages %}{% if message['role'] == 'system' %}
    {%- if ns.first_system %}{% set ns.system = ns.system + message['content'] %}{% set ns.first_system = false %}
    {%- else %}{% set ns.system = ns.system + '\\n\\n' + message['content'] %}{% endif %}
{%- endif %}{% endfor %}{{ bos_token }}{{ ns.system }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{% set ns.is_tool = false -%}
        {{'<｜User｜>' + message['content'] | string}}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['tool_calls'] %}
        {%- set ns.is_first = true %}
        {%- for tool in message['tool_calls'] %}
            {%- if ns.is_first %}{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}{% set ns.is_first = false %}{% else %}{{ '\\n' }}{% endif -%}
            {{'<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\\n```json\\n%s\\n```<｜tool▁call▁end｜>' % (tool['function']['name'], tool['function']['arguments'] | tojson)}}
        {%- endfor %}{{ '<｜tool▁calls▁end｜>' + eos_token }}
    {%- elif message['role'] == 'assistant' %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif -%}
        {{ '<｜Assistant｜>' ~ content ~ eos_token }}
    {%- endif %}
    {%- if message['role'] == 'tool' %}{% set ns.is_tool = true -%}
        {{ '<｜tool▁output▁begin｜>{}<｜tool▁output▁end｜>'.format(message['content']) }}
    {%- endif %}
{%- endfor -%}
{% if add_generation_prompt and not ns.is_tool %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}
"""

COMMAND = """\
{%- set turns = {'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>', 'system': '<|SYSTEM_TOKEN|>'} -%}
{{ bos_token }}
{%- for role, group in messages | groupby('role') %}{{- '# %-9s:%3d' | format(role, group | length) -}}{% endfor -%}
{%- for message in messages if message.role in turns %}
    {%- block turn scoped %}
    {{- '<|START_OF_TURN_TOKEN|>' ~ turns[message.role] ~ (message.content or '') | replace('\\r\\n', '\\n') | indent(2, true) ~ '<|END_OF_TURN_TOKEN|>' }}
    {%- endblock %}
{%- else %}{{ 'nobody' }}
{%- endfor %}
{%- call(x) wrapped('[', ']') %}{{ x | upper }}{% endcall %}
{%- macro wrapped(a, b) %}{{ a }}{{ caller('documents: ' ~ (documents or []) | length) }}{{ b }}{% endmacro %}
{%- filter lower %}{{ messages | map(attribute='role') | unique | sort | join(', ') | title }}{% endfilter %}
{{ messages | tojson(indent=2, sort_keys=true) if not add_generation_prompt }}
{%- set text %}{% for m in messages[:3] %}{{ m.role[0] | upper ~ loop.cycle('a', 'b') }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}{% endset %}
{{- text | length ~ text | center(20) ~ text[::-1] ~ (text is string) }}
""".replace(
    "{%- call(x) wrapped",
    "{%- macro wrapped(a, b) %}{{ a }}{{ caller('documents: ' ~ (documents or []) | length) }}{{ b }}"
    "{% endmacro %}{%- call(x) wrapped",
)

TEMPLATES = {
    "chatml": CHATML, "llama": LLAMA, "mistral": MISTRAL, "gemma": GEMMA, "harmony": HARMONY,
    "deepseek": DEEPSEEK, "command": COMMAND,
}  # fmt: skip

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a \"city\", <now>.",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "e.g. Cuzco"},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "days": {"type": ["integer", "null"], "default": 3},
            "at": {"type": "object", "properties": {"x": {"type": "number"}, "y": {
                "type": "array", "items": {"type": "string"}}}, "required": ["x"]}}}}},
    {"type": "function", "function": {"name": "stop", "description": "é"}},
]  # fmt: skip


def call(name: str = "get_weather", **arguments: Any) -> dict[Any, Any]:
    return {"id": "abcdefghi", "type": "function",
            "function": {"name": name, "arguments": arguments}}  # fmt: skip


SYSTEM = {"role": "system", "content": ' You are "brief" & <kind>.\n'}
HELLO = {"role": "user", "content": "  Hello <|im_end|> 'you' \\ \t\n"}
ANSWER = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nHi é 你好 🙂"}
THOUGHT = {"role": "assistant", "content": "Yes.", "reasoning_content": " Let me see. "}
THINKING = {"role": "assistant", "content": "Yes.", "thinking": "Let me see."}
CALL = {"role": "assistant", "content": "", "thinking": "I call.",
        "tool_calls": [call(city="Cuzco", days=2, at={"x": 1.5, "y": ["<", "\""]})]}  # fmt: skip
RESULT = {"role": "tool", "content": '{"degrees": 12}', "name": "get_weather"}
CONVERSATIONS = {
    "one": [HELLO],
    "system": [SYSTEM, HELLO],
    "talk": [SYSTEM, HELLO, ANSWER, HELLO, THOUGHT, HELLO],
    "answer last": [HELLO, THINKING],
    "tool": [SYSTEM, HELLO, CALL, RESULT],
    "tools": [HELLO, CALL, RESULT, RESULT, ANSWER, HELLO],
    "two calls": [HELLO, {"role": "assistant", "content": "", "tool_calls": [call(), call("stop")]},
                  RESULT],
    "parts": [SYSTEM, {"role": "user", "content": [{"type": "image"},
                                                   {"type": "text", "text": " What? "}]}],
    "strange": [{"role": "User<|im_start|>", "content": "\r\n"}, {"role": "user", "content": ""}],
}  # fmt: skip
