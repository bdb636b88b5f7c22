"""Evidence: the words it knows. Short technical English, as agents write it; nothing is looked up
elsewhere. Words are compared by stem, so one form of each is enough unless it is irregular."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Opposite poles of one concept, separated by a bar. The second pole denies the first: «not enabled»
# says the same as «disabled».
DENIALS = """
enable activate active on live running | disable deactivate inactive off
true yes | false no
allow permit may let grant authorize pass-through | forbid prohibit deny block ban disallow prevent refuse
accept approve take tolerate | reject refuse decline turn-down
succeed success pass green work fix | fail failure red break crash abort
open reopen | close shut
required mandatory must needed obligatory compulsory need | optional unneeded
include contain cover present exist available provide mention | exclude lack omit missing absent unavailable
up healthy reachable alive online responsive | down unhealthy unreachable dead offline unresponsive
paid settled | unpaid outstanding overdue owed
encrypted hashed | unencrypted plaintext cleartext
valid current | expired invalid outdated stale
reversible undo revert rollback | irreversible
compatible | incompatible break
safe secure | unsafe insecure dangerous
respect obey honor follow | ignore disregard violate bypass
trust | distrust
supported | unsupported deprecated dropped
agree confirm | disagree deny
right correct | wrong incorrect
stable reliable | unstable flaky unreliable
known | unknown
visible show | hidden hide
connect | disconnect
ready done finish complete | pending unfinished incomplete
"""

# Opposite poles of which neither denies the other: what is not long need not be short.
OPPOSITES = """
public open-source | private proprietary internal
synchronous sync blocking | asynchronous async non-blocking background
increase grow rise raise gain improve | decrease shrink fall drop lower decline reduce lose worsen
fast quick rapid | slow
long lengthy detailed verbose | short brief terse concise
high tall | low
big large huge | small tiny little
before prior earlier ahead until | after later afterwards since
above over exceed more greater higher | below under less fewer lower within
at-least minimum min | at-most maximum max up-to
ascending oldest-first | descending newest-first
start begin launch startup boot | stop end shutdown terminate
continue proceed resume | stop abort halt cancel
full | empty
keep retain preserve hold remain stay | delete remove discard purge drop release erase
manual by-hand manually | automatic automatically automated
fixed constant hard-coded static immutable frozen | configurable dynamic variable adjustable mutable
read-only immutable | writable changeable editable mutable
local on-premise | remote cloud hosted
root privileged | unprivileged non-root rootless
lazy lazily | eager eagerly
parallel concurrent simultaneous | sequential serial one-by-one
first initial | last final
same identical equal shared share common | different distinct separate own unique
unique | duplicate repeated
free gratis | cost charge
single alone | multiple several many
hot warm | cold
strict | lenient loose
deterministic | random nondeterministic
even | odd
easy simple | hard difficult complex
cheap | expensive
early | late
push | pull
request | response
nullable | not-null
strip remove | add pass keep
merge combine join | split separate divide
lock | unlock
win | lose
like prefer want | dislike avoid
import | export
upgrade | downgrade
inside | outside
left | right
horizontal | vertical
"""

# Words that say the same; the first stands for all.
SYNONYMS = """
check validate verify
limit cap quota maximum
duration time
error exception fault
delete remove erase purge
begin start launch
document documentation doc docs guide
function method
folder directory
user customer
database db
production prod
repository repo
configuration config
developer engineer
message event
send ship deliver
run execute
write store save persist
cost price spend
host server
team group
cancel abort
occur happen appear
refuse reject
quick fast
require need
change modify edit alter update
raise throw
"""

NEGATIONS = words("not no never none nobody nothing neither nor without cannot nowhere hardly non unless")
UNIVERSAL = words("all every always each any everybody everyone entire whole both anyone")
PARTIAL = words("some sometimes partly partially occasionally most mostly several certain")
ONLY = words("only solely exclusively just")
ALSO = words("also too and or still any all")

# Two words and more that are one; replaced before the text is cut into words.
PHRASES = {
    "no longer": "not",
    "not only": "also",
    "no more than": "at-most",
    "not more than": "at-most",
    "no less than": "at-least",
    "at least": "at-least",
    "at most": "at-most",
    "up to": "at-most",
    "one after the other": "sequential",
    "one by one": "sequential",
    "one at a time": "sequential",
    "in sequence": "sequential",
    "by hand": "manual",
    "plain text": "plaintext",
    "clear text": "plaintext",
    "read only": "read-only",
    "rolled back": "undo",
    "roll back": "undo",
    "undone": "undo",
    "in use": "active",
    "turned down": "reject",
    "hard coded": "hard-coded",
    "hardcoded": "hard-coded",
    "shut down": "shutdown",
    "switched off": "disabled",
    "turned off": "disabled",
    "switched on": "enabled",
    "turned on": "enabled",
    "out of date": "outdated",
    "run out of": "lack",
    "ran out of": "lack",
    "fails to": "not",
    "failed to": "not",
    "rather than": "instead",
    "so far": "",
    "as well": "also",
    "data center": "datacenter",
    "limited to": "only",
    "restricted to": "only",
    "nothing but": "only",
    "one and a half": "1.5",
    "two and a half": "2.5",
}

STOP = words("""
    the a an of to in on at by for with from as is are was were be been being it its this that these those
    there their our your his her we they i you he she which who whom what when where how why if then than so
    do does did has have had will would shall should can could may might must and or but also still yet
    already about approximately roughly around almost now currently once per into onto via through between
    during s t very too either such own both since while because until up out upon own set get gets got
    """)

# Where the subject ends. Forms that the stem does not cover are listed as they are.
VERBS = """
is are was were be has have had does do did can cannot could may might must will would shall should
use need want prefer run return raise read write accept reject allow forbid support require contain include
exclude take make start stop begin end expire listen send receive keep delete remove show add pass fail
succeed reach report improve lower grow shrink happen appear affect skip abort release hold ship cost fix
break live store introduce trigger install respect ignore call create spend approve terminate decide stay
cover mention lack guarantee deliver share continue refresh load lead deploy retain retry print limit strip
wait see finish serve leave cache sent kept made took ran read wrote grew shrank built held block let
"""

# A subject can have several of what follows these: naming another one is no contradiction.
OPEN_VERBS = words("""
    contain include support have has need want prefer require cover accept show add check write read print
    send mention serve handle see know ask get like
    """)

IRREGULAR = {
    "ran": "run", "sent": "send", "built": "build", "kept": "keep", "held": "hold", "wrote": "write",
    "written": "write", "grew": "grow", "grown": "grow", "shrank": "shrink", "took": "take", "taken": "take",
    "made": "make", "given": "give", "gave": "give", "left": "leave", "lost": "lose", "found": "find",
    "broke": "break", "broken": "break", "chose": "choose", "chosen": "choose", "began": "begin",
    "fell": "fall", "rose": "rise", "went": "go", "gone": "go", "said": "say", "told": "tell", "met": "meet",
    "paid": "paid", "unpaid": "unpaid", "need": "need", "red": "red", "slower": "slow", "faster": "fast",
    "longer": "long", "shorter": "short", "larger": "large", "largest": "large", "smaller": "small",
    "bigger": "big", "higher": "high", "cheaper": "cheap", "newer": "new", "older": "old", "later": "later",
    "spent": "spend", "froze": "freeze", "frozen": "frozen", "hidden": "hidden", "shown": "show",
}  # fmt: skip

SMALL_NUMBERS = {
    "zero": 0, "one": 1, "single": 1, "two": 2, "twice": 2, "three": 3, "four": 4, "five": 5, "six": 6,
    "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "dozen": 12, "fifteen": 15,
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "ninety": 90, "hundred": 100,
    "thousand": 1000, "million": 1_000_000, "half": 0.5,
}  # fmt: skip

MULTIPLIERS = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "billion": 1e9, "bn": 1e9}

# A unit is a kind of quantity and how much of it.
UNITS = {
    "ns": ("time", 1e-9), "us": ("time", 1e-6), "µs": ("time", 1e-6), "ms": ("time", 1e-3),
    "millisecond": ("time", 1e-3), "s": ("time", 1.0), "sec": ("time", 1.0), "second": ("time", 1.0),
    "min": ("time", 60.0), "minute": ("time", 60.0), "h": ("time", 3600.0), "hr": ("time", 3600.0),
    "hour": ("time", 3600.0), "day": ("time", 86400.0), "week": ("time", 604800.0),
    "month": ("time", 2592000.0), "year": ("time", 31536000.0),
    "b": ("size", 1.0), "byte": ("size", 1.0), "kb": ("size", 1e3), "kib": ("size", 1024.0),
    "mb": ("size", 1e6), "mib": ("size", 1048576.0), "gb": ("size", 1e9), "gib": ("size", 1073741824.0),
    "tb": ("size", 1e12), "tib": ("size", 1099511627776.0),
    "%": ("share", 0.01), "percent": ("share", 0.01), "pct": ("share", 0.01),
    "dollar": ("money", 1.0), "usd": ("money", 1.0), "$": ("money", 1.0),
    "euro": ("euro", 1.0), "eur": ("euro", 1.0), "€": ("euro", 1.0),
    "mm": ("length", 1e-3), "cm": ("length", 1e-2), "km": ("length", 1e3), "meter": ("length", 1.0),
    "kg": ("weight", 1.0), "mg": ("weight", 1e-6), "gram": ("weight", 1e-3),
}  # fmt: skip

# Once in so many seconds.
FREQUENCIES = {
    "hourly": 3600.0, "daily": 86400.0, "nightly": 86400.0, "weekly": 604800.0, "monthly": 2592000.0,
    "yearly": 31536000.0, "annually": 31536000.0,
}  # fmt: skip

MONTHS = {
    "january": 1, "jan": 1, "february": 2, "feb": 2, "march": 3, "mar": 3, "april": 4, "apr": 4, "may": 5,
    "june": 6, "jun": 6, "july": 7, "jul": 7, "august": 8, "aug": 8, "september": 9, "sep": 9,
    "october": 10, "oct": 10, "november": 11, "nov": 11, "december": 12, "dec": 12,
}  # fmt: skip
WEEKDAYS = words("monday tuesday wednesday thursday friday saturday sunday")

# Answers to the same question; of two different ones in the same place only one can be true.
EXCLUSIVE = """
debug info warning error critical
celsius fahrenheit kelvin
utc local
second minute hour day week month year
linux windows macos
tab space
json xml yaml toml csv pdf excel
get post put patch
north south east west
startup shutdown
left right center
red green blue yellow black white
low medium high
"""
