"""The policies: one pure function a file. A policy wishes; gates decide. The first that wishes something is heard."""

from vllmd.decide.propose import Policy
from vllmd_policies.hang_again import hang_again
from vllmd_policies.host_oom import host_oom
from vllmd_policies.itl_ladder import itl_ladder
from vllmd_policies.kv_pool import kv_pool_too_small
from vllmd_policies.memory_taken import memory_taken
from vllmd_policies.model_len import model_len_too_long
from vllmd_policies.no_flag_helps import no_flag_helps
from vllmd_policies.own_flag_refused import own_flag_refused
from vllmd_policies.refused_flags import refused_flags
from vllmd_policies.restart_unchanged import restart_unchanged
from vllmd_policies.runtime_oom import runtime_oom
from vllmd_policies.start_deadline import start_deadline
from vllmd_policies.start_oom import start_oom
from vllmd_policies.step_back import step_back
from vllmd_policies.switched_off import switched_off
from vllmd_policies.variable_helps import variable_helps

BUILT_IN: tuple[Policy, ...] = (
    own_flag_refused,  # before no_flag_helps: what vllmd changed itself needs no operator
    memory_taken,
    kv_pool_too_small,
    model_len_too_long,
    runtime_oom,
    start_oom,
    host_oom,
    start_deadline,
    variable_helps,
    switched_off,
    refused_flags,
    no_flag_helps,
    hang_again,
    restart_unchanged,
    itl_ladder,
    step_back,
)
