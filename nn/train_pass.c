/* The device's part of a step: forward and backward of a micro-batch, the update. Call by call in
 * the first step, when memory and plans of products come to be; after that as graphs.
 */
#include <stdio.h>

#include "core/log.h"
#include "core/memory.h"
#include "nn/plan.h"
#include "nn/train_loop.h"

Status passes_init(Loop *l) {
    Device *d = tape_device(l->tape);
    int64_t one = 1, micros = l->options->accumulate;
    void *memory;
    TRY(mem_alloc(&memory, micros, sizeof(float), "losses"));
    l->host_losses = memory;
    TRY(arena_tensor(&d->state, DTYPE_F32, 1, &one, &l->micro_loss));
    return arena_tensor(&d->state, DTYPE_F32, 1, &micros, &l->losses);
}

static void graphs_free(Loop *l) {
    Device *d = tape_device(l->tape);
    StepGraphs *g = &l->graphs;
    device_graph_free(d, g->first);
    device_graph_free(d, g->later);
    device_graph_free(d, g->finish);
    device_graph_free(d, g->update);
    *g = (StepGraphs){.refused = g->refused};
}

void passes_free(Loop *l) {
    Device *d = tape_device(l->tape);
    graphs_free(l);
    if (!tensor_is_none(l->micro_loss))
        arena_give(&d->state, l->micro_loss.data, tensor_bytes(l->micro_loss));
    if (!tensor_is_none(l->losses)) arena_give(&d->state, l->losses.data, tensor_bytes(l->losses));
    mem_free(l->host_losses);
}

/* Before the first step of the process. Without push() the loss may need true memory. */
Status passes_plan(Loop *l, int64_t batch) {
    const PlanTask plan = {l->optim->params, tape_act(l->tape), l->task->user, l->task->loss};
    StepPlan out;
    if (!l->task->push || l->planned) return STATUS_OK;
    l->planned = true;
    return plan_reserve(&plan, batch, &out);
}

/* ---- kernels alone: what may be recorded ------------------------------------------------ */

static Status micro_kernels(Loop *l, int64_t batch) {
    Tape *t = l->tape;
    Device *d = tape_device(t);
    tape_reset(t, true);
    Var *v = l->task->loss(l->task->user, t, batch);
    TRY(tape_status(t));
    if (!v || tensor_is_none(v->value) || v->value.dtype != DTYPE_F32 ||
        tensor_count(v->value) != 1)
        return status_set(STATUS_INTERNAL, "the task's loss is no F32 scalar");
    const int64_t parts = l->options->accumulate * comm_ranks(l->options->comm);
    TRY(tape_backward(t, v, 1.0f / (float)parts));
    return d->k->copy(d, grad_set(l->micro_loss), tensor_1d(v->value.data, DTYPE_F32, 1), 1.0f);
}

/* A loss that is not finite makes the gradient norm so: 0 times the losses is added to the first
 * gradient. Then the device alone decides that the step changes nothing. */
static Status finish_kernels(Loop *l) {
    Params *p = l->optim->params;
    Device *d = p->device;
    TRY(params_finish_grads(p));
    Tensor first = tensor_2d(p->grad.data, DTYPE_F32, 1, 1);
    Tensor losses = tensor_2d(l->losses.data, DTYPE_F32, l->options->accumulate, 1);
    return d->k->sum_batch(d, grad_add(first), losses, 0.0f);
}

/* The sums over ranks stand between two graphs. */
static Status update_kernels(Loop *l) {
    if (comm_ranks(l->options->comm) < 2) TRY(finish_kernels(l));
    return adamw_apply(l->optim);
}

static Status sum_over_ranks(Loop *l) {
    TRY(comm_sum(l->options->comm, l->optim->params->grad));
    return comm_sum(l->options->comm, l->losses);
}

/* ---- recording -------------------------------------------------------------------------- */

typedef enum Part { PART_MICRO, PART_FINISH, PART_UPDATE } Part;

static Status part_kernels(Loop *l, Part part, int64_t batch) {
    if (part == PART_MICRO) return micro_kernels(l, batch);
    return part == PART_FINISH ? finish_kernels(l) : update_kernels(l);
}

static Status record(Loop *l, Part part, int64_t batch, DeviceGraph **out) {
    Device *d = tape_device(l->tape);
    char message[1024];
    TRY(device_graph_begin(d));
    Status s = part_kernels(l, part, batch);
    snprintf(message, sizeof message, "%s", status_message());
    Status end = device_graph_end(d, out);
    return s == STATUS_OK ? end : status_set(s, "%s", message);
}

/* In the order of a step, because each part leaves marks on the parameters ("this gradient is set")
 * that the next one reads. */
static Status record_all(Loop *l, int64_t batch) {
    StepGraphs *g = &l->graphs;
    TRY(record(l, PART_MICRO, batch, &g->first));
    if (l->options->accumulate > 1) TRY(record(l, PART_MICRO, batch, &g->later));
    if (comm_ranks(l->options->comm) > 1) TRY(record(l, PART_FINISH, batch, &g->finish));
    TRY(record(l, PART_UPDATE, batch, &g->update));
    g->batch = batch;
    return STATUS_OK;
}

/* Another loss: what was recorded is of no use, and the first step with it runs call by call. */
static void follow_form(Loop *l) {
    StepGraphs *g = &l->graphs;
    const int64_t form = l->task->loss_form ? l->task->loss_form(l->task->user) : 0;
    if (form == g->form) return;
    graphs_free(l);
    g->form = form;
    l->eager_batch = 0;
}

void passes_begin(Loop *l) {
    StepGraphs *g = &l->graphs;
    follow_form(l);
    bool wanted = l->task->push && !l->options->no_graphs && !g->refused && g->batch == 0 &&
                  l->eager_batch > 0 && device_can_capture(tape_device(l->tape));
    params_begin_step(l->optim->params);
    if (!wanted) return;
    if (record_all(l, l->eager_batch) == STATUS_OK) return;
    log_warn("steps run call by call, they could not be recorded: %s", status_message());
    g->refused = true;
    graphs_free(l);
    params_begin_step(l->optim->params);
}

/* ---- a step's parts --------------------------------------------------------------------- */

Status pass_micro(Loop *l, int64_t micro, int64_t samples) {
    Device *d = tape_device(l->tape);
    StepGraphs *g = &l->graphs;
    if (g->batch == 0) {
        l->eager_batch = samples;
        TRY(micro_kernels(l, samples));
    } else if (samples == g->batch) {
        TRY(device_graph_launch(d, micro == 0 ? g->first : g->later));
    } else {
        return status_set(STATUS_INTERNAL, "a batch of %lld samples in a run with batches of %lld",
                          (long long)samples, (long long)g->batch);
    }
    Tensor slot = tensor_1d((float *)l->losses.data + micro, DTYPE_F32, 1);
    return d->k->copy(d, grad_set(slot), l->micro_loss, 1.0f);
}

Status pass_update(Loop *l) {
    StepGraphs *g = &l->graphs;
    if (comm_ranks(l->options->comm) > 1) {
        TRY(g->batch ? device_graph_launch(tape_device(l->tape), g->finish) : finish_kernels(l));
        TRY(sum_over_ranks(l));
    }
    return g->batch ? device_graph_launch(tape_device(l->tape), g->update) : update_kernels(l);
}
