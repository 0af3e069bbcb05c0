"""Chat templates from each source, rendered as transformers renders them; what they refuse is the request's fault."""

import json
from datetime import datetime

import gguf
import msgspec
import pytest

from actorlm.checkpoint.describe import BYTES
from actorlm.errors import BadRequest, ModelError
from actorlm.text.chat_template import load_chat_template

USER = {"role": "user", "content": "Hi <b>&'\" there"}
SYSTEM = {"role": "system", "content": "Be brief.\n"}
ASSISTANT = {"role": "assistant", "content": "  Yes. "}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": "é<"}}}],
}
RESULT = {"role": "tool", "content": "42", "tool_call_id": "1"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]

ALTERNATING = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system is defined %}
            {{- '[INST] ' + system + '\n\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' + message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

TOOL_CALLS = """
{% if not date_string is defined %}
    {% set date_string = strftime_now("%Y") %}
{% endif %}
{%- set ns = namespace(last=0, texts=dict(a=1)) -%}
{%- if tools %}
    {{- 'Tools:\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}
        {{- tool.function | tojson }}
    {%- endfor %}
{%- endif %}
  {{ date_string }}
{% for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {%- set ns.last = loop.index0 %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {{- '<call>' ~ (message.tool_calls[0].function | tojson) ~ '</call>' }}
    {%- elif message.content is string %}
        {%- generation %}{{ message.role ~ ':' ~ message.content.strip() }}{% endgeneration %}
    {%- endif %}
    {%- if loop.index > 5 %}{% break %}{% endif %}
{% endfor %}
last={{ ns.last }} {% if add_generation_prompt %}assistant{% endif -%}
{% if documents is none %} none{% endif %}{{ extra | default('') }}
"""

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATS = [
    [USER],
    [SYSTEM, USER],
    [SYSTEM, USER, ASSISTANT, USER],
    [USER, ASSISTANT, {**USER, "content": "日本 👩‍🚀\n\t{{ 7 * 7 }}"}],
]


@pytest.fixture
def directory(tmp_path):
    """The description of a directory with this tokenizer_config.json and chat_template.jinja."""

    def make(config=None, jinja=None):
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        if jinja is not None:
            (tmp_path / "chat_template.jinja").write_text(jinja)
        return msgspec.structs.replace(BYTES, path=str(tmp_path), format="safetensors")

    return make


def transformers_render(template, messages, **variables):
    from transformers.utils.chat_template_utils import render_jinja_template

    variables = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", **variables}
    return render_jinja_template([messages], chat_template=template, **variables)[0][0]


@pytest.mark.parametrize("template", [CHATML, ALTERNATING, TOOL_CALLS], ids=["chatml", "alternating", "tools"])
@pytest.mark.parametrize("messages", CHATS, ids=range(len(CHATS)))
def test_rendered_as_transformers_renders(directory, template, messages):
    chat_template = load_chat_template(
        directory({"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}})
    )
    for generation_prompt in (True, False):
        ours = chat_template.render(messages, add_generation_prompt=generation_prompt)
        assert ours == transformers_render(template, messages, add_generation_prompt=generation_prompt)


@pytest.mark.parametrize("variables", [{}, {"date_string": "1 May"}, {"extra": "<x>"}])
def test_tools_and_variables_as_transformers(directory, variables):
    messages = [SYSTEM, USER, {"role": "skip", "content": "x"}, CALL, RESULT, ASSISTANT, USER, USER]
    ours = load_chat_template(directory(jinja=TOOL_CALLS)).render(messages, tools=TOOLS, variables=variables)
    without_none = [{k: v for k, v in message.items() if v is not None} for message in messages]
    assert ours == transformers_render(TOOL_CALLS, without_none, tools=TOOLS, **variables)
    assert '"x": "é<"' in ours


def test_the_clock_is_an_argument(directory):
    template = load_chat_template(directory(jinja="{{ strftime_now('%d %b %Y') }}"), now=lambda: datetime(2031, 5, 1))  # noqa: DTZ001
    assert template.render([USER]) == "01 May 2031"


@pytest.mark.parametrize("template", [CHATML, TOOL_CALLS, "{% for m in messages %}{{ m.content }}{% endfor %}"])
@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}])
def test_c10_absent_content_is_empty(directory, template, content):
    messages = [USER, {"role": "assistant", **content, "tool_calls": None}, {"role": "user", **content}]
    text = load_chat_template(directory(jinja=template)).render(messages)
    assert "None" not in text
    assert "Undefined" not in text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (ALTERNATING, "roles must alternate"),
        ("{{ messages[0].nosuch.deeper }}", "nosuch"),
        ("{{ messages[7].content + 'x' }}", "no element 7"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].content | nosuch }}", None),
        ("{{ ''.__class__ }}{{ ''.__class__.mro() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% set ns = namespace(_x=1) %}", "begins with _"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_what_a_template_refuses_is_a_bad_request(directory, template, words):
    if words is None:
        with pytest.raises(ModelError, match="does not compile"):
            load_chat_template(directory(jinja=template))
        return
    with pytest.raises(BadRequest, match=words) as caught:
        load_chat_template(directory(jinja=template)).render([ASSISTANT, USER])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "name",
    ["chat_template", "messages", "tools", "documents", "add_generation_prompt", "bos_token", "range", "tokenize"],
)
def test_e11_what_a_request_cannot_set_is_no_variable(directory, name):
    template = load_chat_template(directory({"bos_token": "<s>"}, jinja=CHATML + "{{ bos_token }}"))
    with pytest.raises(BadRequest, match=f"{name} cannot be a variable") as caught:
        template.render([USER], variables={name: "x"})
    assert caught.value.param == "chat_template_kwargs"


def test_a_template_sees_the_variables_that_it_mentions(directory):
    template = load_chat_template(directory(jinja="{{ thinking | default('off') }}{{ messages[0].content }}"))
    assert template.render([USER], variables={"thinking": "on", "other": 1}).startswith("on")
    assert template.without_effect({"thinking": "on", "other": 1}) == ["other"]


def test_documents_go_to_a_template_that_shows_them(directory):
    documents = [{"title": "a", "text": "b"}]
    shows = "{% if documents %}{{ documents | tojson }}{% endif %}"
    assert load_chat_template(directory(jinja=shows)).render([USER], documents=documents) == json.dumps(documents)
    with pytest.raises(BadRequest, match="takes no documents") as caught:
        load_chat_template(directory(jinja=CHATML)).render([USER], documents=documents)
    assert caught.value.param == "documents"


STRIPPING = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<end>{% endfor %}"


@pytest.mark.parametrize("template", [CHATML, STRIPPING, TOOL_CALLS], ids=["chatml", "stripping", "tools"])
@pytest.mark.parametrize("content", ["Once upon", "Once upon ", "", " x\n"])
def test_a_final_message_is_continued_as_transformers_does(directory, template, content):
    messages = [USER, {"role": "assistant", "content": content}]
    rendered = load_chat_template(directory(jinja=template)).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    if content:
        options = {"add_generation_prompt": False, "continue_final_message": True}
        assert rendered == transformers_render(template, messages, **options)
    assert rendered.endswith(content if template == CHATML else content.strip())
    assert "ends here" not in rendered


def test_a_final_message_that_is_not_shown_cannot_be_continued(directory):
    template = load_chat_template(directory(jinja="{{ messages[0].content }}"))
    with pytest.raises(BadRequest, match="does not show") as caught:
        template.render([USER, ASSISTANT], continue_final_message=True)
    assert caught.value.param == "continue_final_message"


def test_the_callers_messages_are_left_alone(directory):
    message = {"role": "user", "content": None}
    load_chat_template(directory(jinja=CHATML)).render([message])
    assert message == {"role": "user", "content": None}


def test_the_file_wins_over_the_config(directory):
    description = directory({"chat_template": "config"}, "file {{ eos_token is defined }}")
    assert load_chat_template(description).render([USER]) == "file False"


def test_special_tokens_from_the_map_and_the_config(directory, tmp_path):
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<old>", "unk_token": {"content": "<unk>"}}')
    description = directory({"bos_token": "<new>", "pad_token": None}, "{{ bos_token }}{{ unk_token }}{{ pad_token }}")
    assert load_chat_template(description).render([USER]) == "<new><unk>"


def test_several_templates_by_name(directory):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    template = load_chat_template(directory({"chat_template": named}))
    assert template.render([USER]) == "plain"
    assert template.render([USER], tools=[]) == "plain"
    assert template.render([USER], tools=TOOLS) == "with tools"
    with pytest.raises(ModelError, match="named tool_use, but none named default"):
        load_chat_template(directory({"chat_template": named[1:]}))


def test_no_template(directory):
    assert load_chat_template(directory()) is None
    assert load_chat_template(directory({"bos_token": "<s>"})) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [({"chat_template": 7}, r"tokenizer_config\.json: .*chat_template"), ({"chat_template": "{% if"}, "compile")],
)
def test_damage_is_named(directory, config, words):
    with pytest.raises(ModelError, match=words):
        load_chat_template(directory(config))


def test_from_a_gguf_file(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_token_list(["<s>", "</s>"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(
        [
            {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ unk_token }}"},
            {"name": "tool_use", "template": "tools"},
        ]
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    template = load_chat_template(msgspec.structs.replace(BYTES, path=str(tmp_path / "t.gguf"), format="gguf"))
    assert template.render([{"role": "user", "content": "x"}]) == "<s>x</s>"
    assert template.render([USER], tools=TOOLS) == "tools"


def test_the_byte_vocabularys_template(byte_tokenizer):
    text = load_chat_template(BYTES).render([SYSTEM, USER])
    assert text == transformers_render(CHATML, [SYSTEM, USER])
    assert byte_tokenizer.decode(byte_tokenizer.encode(text), skip_special_tokens=False) == text
    assert byte_tokenizer.encode(text)[0] == 257


def test_transformers_is_not_imported():
    import subprocess
    import sys

    program = (
        "import sys; import actorlm.text.chat_template, actorlm.text.tokenizer, actorlm.text.detokenize; "
        "print([m for m in ('torch', 'transformers', 'numpy', 'gguf', 'zmq') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
