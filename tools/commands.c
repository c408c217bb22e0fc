/* The table of commands, in the order of `ttv help`. */
#include "tools/cli.h"

#include <stddef.h>

const Command *const commands[] = {
    &command_train,        &command_eval,
    &command_classify,     &command_inspect,
    &command_models,       &command_export,
    &command_ckpt_average, &command_ckpt_diff,
    &command_ckpt_prune,   &command_data_check,
    &command_data_stat,    &command_data_pack,
    &command_data_index,   &command_data_synth,
    &command_nvs_train,    &command_nvs_eval,
    &command_nvs_render,   &command_psnr,
    &command_ttt_verify,   &command_ttt_probe,
    &command_plot,         &command_bench,
    &command_doctor,       &command_completion,
    &command_man,          NULL,
};
