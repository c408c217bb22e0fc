#include <math.h>

#include "nn/optim.h"

static double lr_after_warmup(const Schedule *s, int64_t step) {
    const double pi = 3.14159265358979323846, warmup = (double)s->warmup_steps;
    if (step < s->warmup_steps)
        return s->warmup_start + (s->base - s->warmup_start) * (double)step / warmup;
    if (step >= s->total_steps) return s->floor;
    const double u = ((double)step - warmup) / ((double)s->total_steps - warmup);
    return s->floor + 0.5 * (s->base - s->floor) * (1.0 + cos(pi * u));
}

/* The order of operations is timm's, so that the values agree to the last bit (vittt.md 7.1). */
double schedule_lr(const Schedule *s, int64_t step) {
    const double pi = 3.14159265358979323846;
    if (s->after_warmup) return lr_after_warmup(s, step);
    double u = (double)(step - 1), warmup = (double)s->warmup_steps, total = (double)s->total_steps;
    if (s->warmup_steps > 0) {
        if (step < 1) return s->warmup_start;
        if (u < warmup) return s->warmup_start + u * ((s->base - s->warmup_start) / warmup);
    }
    if (step < 1) return s->base;
    if (u >= total) return s->floor;
    return s->floor + 0.5 * (s->base - s->floor) * (1.0 + cos(pi * u / total));
}
