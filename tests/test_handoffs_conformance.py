"""Every rule of the handoff protocol, and the tests that hold us to it. Names begin with the section.

1    triggers                 test_handoffs_types.py
2    types and their rules    test_handoffs_types.py, _rules.py, _tasks.py
3    context                  test_handoffs_context.py, _tasks.py (deadlines)
4    return                   test_handoffs_lifecycle.py, _rules.py
5    validation               test_handoffs_rules.py, _lifecycle.py, _tasks.py
6    failures                 test_handoffs_lifecycle.py, _rules.py, _tasks.py
7    audit                    test_handoffs_lifecycle.py, test_audit.py
8    lifecycle                test_handoffs_lifecycle.py
9    notes                    test_handoffs_lifecycle.py, _rules.py
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# Rule by rule; what stands behind a rule has this in its name.
RULES = {
    "1.1 task completion goes to the next agent": "1_1_task_completion",
    "1.2 capability mismatch goes to who has it": "1_2_capability_mismatch_goes",
    "1.3 escalation goes to the supervisor or a human": "1_3_escalation",
    "1.4 timeout goes up": "1_4_timeout",
    "1.4 a deadline that has passed": "1_4_a_deadline",
    "1.5 explicit request": "1_5_explicit_request",
    "2.1 the sender's segment is complete": "2_1_sequential_ends_the_senders_segment",
    "2.1 full context, independent": "2_1_sequential_gives_the_whole_context",
    "2.1 the sender is freed": "2_1_sequential_frees_the_sender",
    "2.2 the subtask is named": "2_2_delegation_names_the_subtask",
    "2.2 a timeout is required": "2_2_delegation_needs_a_timeout",
    "2.2 returned within the timeout": "2_2_delegation_is_returned_within",
    "2.2 on_timeout is executed": "2_2_delegation_does_what_was_said_on_timeout",
    "2.2 the sender is blocked or goes on": "2_2_delegation_blocks_the_sender_or_does_not",
    "2.2 the sender keeps the task": "2_2_delegation_keeps_the_sender_the_owner",
    "2.3 independent copies": "2_3_broadcast_gives_each_an_independent_copy",
    "2.3 no coordination between recipients": "2_3_broadcast_receivers_do_not_know",
    "2.3 aggregation": "2_3_broadcast_is_aggregated",
    "2.3 partial failures": "2_3_broadcast_tolerates_failures",
    "2.3 ownership until aggregation": "2_3_broadcast_is_the_senders_until",
    "2.3 return configurable per target": "2_3_broadcast_returns_are_wished_for_each",
    "2.3 closed by the sender": "2_3_a_broadcast_that_is_closed",
    "2.4 the reason is documented": "2_4_escalation_says_why",
    "2.4 resolved or escalated further": "2_4_escalation_is_resolved_or_goes_further",
    "2.4 each level's assessment": "2_4_escalation_adds_each_levels_assessment",
    "2.4 depth three": "2_4_depth_three_and_then_a_human",
    "2.4 urgency is inherited": "2_4_escalation_is_as_urgent",
    "2.4 full context and rationale": "2_4_escalation_gives_full_context",
    "2.4 temporarily held": "2_4_escalation_is_held_for_a_time",
    "3 constraints": "3_constraints_are_told",
    "3 a deadline is kept": "3_a_deadline_ends",
    "3.1 any agent reads all variables": "3_1_any_agent_of_the_workflow_reads",
    "3.1 writes within its scope": "3_1_an_agent_writes_variables_of_its_own_scope",
    "3.1 file locks": "3_1_files_in_progress_are_the_leases",
    "3.1 conflicting writes": "3_1_conflicting_writes",
    "3.1 decisions made": "3_1_decisions_made",
    "3.2 full": "3_2_history_full",
    "3.2 summary": "3_2_history_summary",
    "3.2 relevant only": "3_2_history_relevant_only",
    "3.2 max messages": "3_2_history_has_at_most",
    "3.2 include": "3_2_history_leaves_out",
    "3.2 guidelines": "3_2_guidelines",
    "3.3 artifacts": "3_3_artifacts",
    "4.1 return payload": "4_1_return_payload",
    "4.2 retry with backoff": "4_2_retry_waits_longer",
    "4.2 retry three times": "6_3_a_reminder_and_then_retry_three_times",
    "4.2 escalate": "4_2_escalate_forwards",
    "4.2 fail": "4_2_fail_asks_for_a_human",
    "5.1 capabilities": "5_1_all_capabilities",
    "5.2 capacity": "5_2_at_capacity",
    "5.3 acceptance": "5_3_acceptance",
    "5.3 a reason is required": "5_3_rejection_and_deferral_need_a_reason",
    "6.1 rejected: logged, told, rerouted, human": "6_1_rejection_is_logged",
    "6.1 at most three reroutes": "6_1_rerouted_at_most_three_times",
    "6.1 rerouted by the sender": "6_1_rerouted_by_its_sender",
    "6.2 30 seconds": "6_2_no_acknowledgement_within_30_seconds",
    "6.2 the sender stays where it was": "6_2_unanswered_leaves_the_sender",
    "6.2 critical goes up": "6_2_what_is_critical",
    "6.3 reminder": "6_3_a_reminder_comes_before",
    "7.1 record": "7_1_a_record_says_all_of_it",
    "7.2 two records": "7_2_every_handoff_has_at_least_two_records",
    "7.2 end": "7_2_what_ends_has_a_record",
    "7.2 write-ahead": "7_2_the_record_is_written_before_the_step",
    "7.2 queryable": "7_2_records_are_found_by",
    "7 immutable": "records_are_immutable",
    "7.3 active tasks": "retention_active_tasks_until_closure_and_30_days",
    "7.3 completed tasks": "retention_completed_tasks_90_days",
    "7.3 escalations": "retention_escalations_180_days",
    "7.3 JSON lines": "export_is_json_lines",
    "8.1 trigger": "8_1_trigger",
    "8.2 prepare": "8_2_prepare",
    "8.3 validate": "8_3_validate",
    "8.4 initiate": "8_4_initiate",
    "8.5 acknowledge": "8_5_acknowledge",
    "8.6 accept or reject": "8_6_accept_or_reject",
    "8.7 execute": "8_7_execute",
    "8.8 return": "8_8_return",
    "8.9 complete": "8_9_complete",
    "8.10 release": "8_10_release",
    "9 broadcast group": "9_a_broadcast_has_a_record_for_each",
    "9 autonomy": "9_insufficient_autonomy",
}


@pytest.fixture(scope="module")
def names() -> str:
    files = [*HERE.glob("test_handoffs_*.py"), HERE / "test_audit.py"]
    found = [re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE) for file in files]
    return " ".join(name for file in found for name in file)


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_has_a_test(names: str, rule: str) -> None:
    assert f"test_{RULES[rule]}" in names
