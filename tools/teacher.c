#include "tools/teacher.h"

Status teacher_open(Teacher *t, const Model *m, const Ema *ema, double ratio, int64_t from_epoch) {
    *t = (Teacher){.ratio = (float)ratio, .from_epoch = from_epoch};
    params_init(&t->params, m->device);
    Status s = vittt_new(&m->config, &t->params, &t->vittt);
    if (s == STATUS_OK) s = params_build_over(&t->params, ema->average, m->act);
    if (s != STATUS_OK) teacher_close(t);
    return s;
}

void teacher_close(Teacher *t) {
    vittt_free(t->vittt);
    if (t->params.device) params_free(&t->params);
    *t = (Teacher){0};
}

/* The average has moved since the last step, and products read its rounded copy. On the tape's
 * device, which may be a dry one. */
static Status round_average(const Params *p, Tape *tape) {
    Device *d = tape_device(tape);
    if (tensor_is_none(p->shadow)) return STATUS_OK;
    return d->k->copy(d, grad_set(p->shadow), p->master, 1.0f);
}

Tensor teacher_targets(Teacher *t, Tape *tape, Var *patches, int64_t side, Tensor targets) {
    const bool recording = tape_pause(tape);
    const Status s = round_average(&t->params, tape);
    if (s != STATUS_OK) tape_fail(tape, s);
    /* A view, so that the model does not give back what the other pass still needs. */
    Var *input = op_view(tape, patches, patches->value.rank, patches->value.shape);
    Var *logits = vittt_forward_patches(t->vittt, tape, input, side, side, false);
    Var *thinks = op_softmax(tape, logits, 1.0f);
    Var *both = op_add(tape, tape_input(tape, targets, "targets"), thinks, t->ratio);
    tape_drop(tape, logits);
    tape_drop(tape, thinks);
    tape_resume(tape, recording);
    return both->value;
}
