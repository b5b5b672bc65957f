"""Signs of prompt injection and what each weighs: expressions in RE2's syntax."""

from __future__ import annotations

__all__ = ["HIDDEN", "SIGNS"]

# A few words between two that belong together, within a sentence.
_GAP = r"[^.!?\n]{0,40}?\b"
_INSTRUCTIONS = (
    r"(?:instructions?|prompts?|rules?|guidelines?|directions?|directives?|commands?|constraints?"
    r"|programming|training|messages?|orders|policies)"
)
_PROMPT = (
    r"(?:(?:system|initial|hidden|original|secret|internal|developer|pre)[ -]?"
    r"(?:prompt|instructions?|messages?|rules|guidelines|directives?|configuration)"
    r"|(?:above|previous) (?:prompt|instructions?))"
)
_SECRETS = (
    r"(?:conversation|chat|history|system prompt|credentials?|api[ _-]?keys?|passwords?|secrets?"
    r"|tokens?|cookies?|private keys?|env(?:ironment)?(?: variables?)?|personal data|contents?)"
)

# label: (weight, expressions over the text without case)
SIGNS: dict[str, tuple[float, tuple[str, ...]]] = {
    "INSTRUCTION_OVERRIDE": (
        0.8,
        (
            (
                r"\b(?:ignore|disregard|forget|override|overrule|discard|neglect|skip|bypass|drop)\b"
                rf"{_GAP}(?:previous|prior|above|earlier|preceding|foregoing|existing|initial|original"
                r"|all|any|your|the|these|those|other|every|system|past|former)\b"
                rf"{_GAP}{_INSTRUCTIONS}\b"
            ),
            (
                r"\b(?:ignore|disregard|forget)\b (?:everything|anything|all|what)\b"
                r"(?: that| of)?(?: (?:you|i|we|was|were|is|has|have|has been|had)\b|"
                r" (?:above|before|prior|previous|preceding|so far))"
            ),
            r"\b(?:ignore|disregard|forg[eo]t)\b (?:all |everything )?(?:the )?(?:above|below|previous|user)(?: text)?(?:[.,;:]| and\b)",
            (
                r"\b(?:do not|don't|dont|never|no longer|stop) (?:follow|obey|comply with|listen to)"
                rf"(?:ing)?\b{_GAP}{_INSTRUCTIONS}\b"
            ),
            (
                r"\b(?:ignorier\w*|vergiss|vergesst|missachte)\b[^.!?\n]{0,40}?"
                r"(?:anweisung|instruktion|regel|vorgabe|befehl)"
            ),
            r"\b(?:ignor\w*|oubli\w*)\b[^.!?\n]{0,40}?(?:instructions?|consignes|regles)",
            (
                r"\b(?:ignor\w*|olvid\w*|descart\w*|esquec\w*|dimentic\w*)\b[^.!?\n]{0,40}?"
                r"(?:instruccion|instruco|istruzion|reglas|regras|regole|ordenes"
                r"|indicacion)"
            ),
            r"\bi[ ._*-]g[ ._*-]n[ ._*-]o[ ._*-]r[ ._*-]e\b",
            r"忽略.{0,12}(?:指令|指示|提示|规则)|无视.{0,12}(?:指令|指示|规则)",
        ),
    ),
    "SAFETY_OFF": (
        0.7,
        (
            (
                r"\b(?:disable|turn off|bypass|circumvent|deactivate|remove|evade|switch off)\b"
                rf"{_GAP}(?:safety|guardrails?|filters?|restrictions?|content polic(?:y|ies)"
                r"|safeguards?|moderation|ethic\w*|censorship)\b"
            ),
            (
                r"\b(?:without|free (?:of|from)|have no|has no|with no|no)\b (?:any )?"
                r"(?:restrictions?|filters?|limitations?|censorship|guardrails|ethical|moral)\b"
                rf"{_GAP}(?:guidelines|limits|filters?|rules|restrictions?|whatsoever|anymore|at all)"
                r"\b"
            ),
            (
                r"\bdo anything now\b|\bdeveloper mode\b|\bjailbr(?:eak|oken)\w*\b|\bgod mode\b"
                r"|\bunrestricted (?:ai|mode|assistant|model)\b|\buncensored (?:ai|mode|assistant)\b"
            ),
        ),
    ),
    "ROLE_CHANGE": (
        0.5,
        (
            (
                r"\b(?:you are|you're|you will be|youre) (?:now|no longer|going to (?:be|act))\b"
                rf"{_GAP}(?:an?|dan|the|my|bound|called|named|in|free|restricted)\b"
            ),
            (
                r"\b(?:act|behave|respond|roleplay|role-play|answer) (?:as|like)(?: if)?"
                r"(?: you (?:are|were|have))?(?: an?| the)?\b"
                r"[^.!?\n]{0,30}?\b(?:unrestricted|uncensored|unfiltered|evil|dan|hacker|without|root"
                r"|administrator|no (?:rules|restrictions|limits|filters))\b"
            ),
            (
                r"\bpretend\b[^.!?\n]{0,30}?\b(?:you are|you're|to be|that you|you have)\b"
                r"[^.!?\n]{0,40}?\b(?:no|not|without|unrestricted|evil|hacker|admin\w*|developer"
                r"|free|uncensored)\b"
            ),
        ),
    ),
    "PROMPT_LEAK": (
        0.6,
        (
            (
                r"\b(?:reveal|show|print|repeat|output|display|disclose|leak|expose|tell|give|share"
                r"|write|copy|recite|dump|return|summari[sz]e|translate|echo|send|list)\b"
                rf"{_GAP}(?:your|the|all)\b[^.!?\n]{{0,20}}?\b{_PROMPT}\b"
            ),
            rf"\bwhat (?:is|are|was|were|does|do)\b[^.!?\n]{{0,20}}?\byour\b {_PROMPT}\b",
            (
                r"\brepeat\b[^.!?\n]{0,30}?\b(?:words|text|everything|all)\b[^.!?\n]{0,20}?"
                r"\b(?:above|before this|starting with|verbatim)\b"
            ),
            r"\bbegin(?:ning)? of (?:the )?(?:system )?prompt\b",
        ),
    ),
    "FALSE_ROLE": (
        0.6,
        (
            r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id)\|>",
            r"\[/?inst\]|<</?sys>>|</?system(?:[_-](?:prompt|message|instructions?))?>",
            (
                r"(?:^|\n)\s{0,8}(?:#{1,6} ?|\[|\*\*)"
                r"(?:system|developer|new instructions?|admin(?:istrator)?)"
                r"(?: (?:prompt|message|instructions?|override|note|update))?(?:\]|\*\*)? ?:?\s"
            ),
            (
                r"(?:^|\n)\s{0,8}(?:system|admin(?:istrator)?)"
                r"(?: (?:prompt|message|override|update|instructions?))?:"
            ),
            (
                r"-{3,} ?(?:end|begin|start)(?: of)?(?: the)? ?(?:system|user|untrusted|context|document"
                r"|prompt|instructions?|input|data)"
            ),
        ),
    ),
    "STEALTH": (
        0.7,
        (
            (
                r"\b(?:do not|don't|dont|never|without) (?:tell|telling|mention|mentioning|inform"
                r"|informing|reveal|revealing|notify|notifying|alert|alerting|show|showing|let|letting)"
                rf"\b{_GAP}(?:the |your |any |this )?(?:user|users|human|person|owner|operator|anyone"
                r"|anybody)\b"
            ),
            (
                r"\bkeep (?:this|it)\b[^.!?\n]{0,20}?\b(?:secret|hidden)\b[^.!?\n]{0,20}?\bfrom\b"
                r"[^.!?\n]{0,12}?\b(?:user|human|them)\b"
            ),
        ),
    ),
    "EXFILTRATION": (
        0.6,
        (
            (
                r"\b(?:send|post|forward|upload|exfiltrate|e-?mail|transmit|submit|leak|copy|append)\b"
                rf"{_GAP}{_SECRETS}\b[^.!?\n]{{0,40}}?(?:\bto\b[^.!?\n]{{0,30}}?"
                r"(?:https?://|www\.|@|\bserver\b|\bwebhook\b|\burl\b|\bendpoint\b|\baddress\b)"
                r"|https?://)"
            ),
            (
                r"!\[[^\]\n]{0,80}\]\(https?://[^\s)]{1,200}[?&][^\s)=]{1,40}="
                r"(?:\{|\[|<|%7b|\$|(?:data|secret|history|conversation|prompt|context)\b)"
            ),
            r"\bexfiltrate\b",
        ),
    ),
    "ADDRESSED_TO_MODEL": (
        0.45,
        (
            (
                r"\b(?:attention|important|note|message|instructions?|notice|warning|hey|dear|hello)\b"
                r"[ ,:!]{0,3}(?:to |for )?(?:the |all |any |every )?"
                r"(?:ai|a\.i\.|llms?|language models?|assistants?|chatbots?|agents?|gpt|chatgpt|claude"
                r"|copilot|bots?)\b(?: (?:model|assistant|agent|system|reading))?"
            ),
            (
                r"\bif you(?:'re| are) (?:an? |the )?(?:ai|llm|large language model|language model"
                r"|assistant|chatbot|bot|automated|agent|gpt)\b"
            ),
            (
                r"\b(?:ai|llm|assistant|language model|chatbot|agent)s? (?:reading|processing|parsing"
                r"|summari[sz]ing|viewing|analy[sz]ing) this\b"
            ),
        ),
    ),
    "NEW_INSTRUCTIONS": (
        0.4,
        (
            (
                r"\b(?:new|updated|revised|real|actual|true|urgent|special|additional) "
                r"(?:instructions?|task|objective|goal|directive|orders?|rules)\b ?(?:[:=]|are\b|is\b)"
            ),
            r"\bfrom now on\b",
            (
                r"\binstead[, ]{1,2}(?:you (?:must|should|will|need)|just |only )?\b(?:say|write|output"
                r"|print|respond|reply|answer|do|execute|tell|return|send)\b"
            ),
            (
                r"\byour (?:new|real|only|actual|true) (?:task|goal|job|role|purpose|instructions?"
                r"|objective|identity|name)\b"
            ),
            (
                r"\b(?:stop|end|cancel|abort) (?:your |the )?(?:current |previous )?(?:task|session"
                r"|conversation)\b"
            ),
        ),
    ),
    "ENCODED": (
        0.5,
        (
            (
                r"\b(?:decode|decrypt|base64|rot13)\b[^.!?\n]{0,50}?\b(?:and|then)\b[^.!?\n]{0,20}?"
                r"\b(?:execute|follow|run|obey|do|perform|comply|answer|respond)\b"
            ),
        ),
    ),
}
# Characters that no reader sees and a model reads: an alphabet of tags, and turned directions.
HIDDEN = (
    ("HIDDEN_TEXT", 0.8, r"[\x{E0020}-\x{E007E}]{4,}"),
    ("HIDDEN_TEXT", 0.4, r"[\x{202A}-\x{202E}\x{2066}-\x{2069}]"),
)
