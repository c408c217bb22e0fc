/* Pictures of `ttv nvs eval`, as `ttv psnr` and other scorers read them. */
#include <stdio.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/nvs_eval.h"

/* DIR/<kind>/<scene>/<frame>.png; a scene's name may not lead out of the folder. */
static Status save_view(const NvsEval *e, const char *kind, const ViewSample *s, int64_t frame,
                        const uint8_t *pixels) {
    const char *scene = scene_set_at(e->set, s->scene)->name;
    const Image image = {(uint8_t *)(uintptr_t)pixels, e->view.width, e->view.height};
    char name[600], *folder, *path;
    snprintf(name, sizeof name, "%s/%s%s", kind, scene[0] == '.' ? "_" : "", scene);
    TRY(path_join(&folder, e->save, name));
    Status status = file_make_folder(folder);
    snprintf(name, sizeof name, "%06lld.png", (long long)frame);
    if (status == STATUS_OK) status = path_join(&path, folder, name);
    mem_free(folder);
    TRY(status);
    status = image_write_png(path, &image);
    mem_free(path);
    return status;
}

Status nvs_eval_save(const NvsEval *e, const ViewSample *s) {
    const int64_t size = e->view.width * e->view.height * 3;
    for (int64_t v = 0; v < s->inputs; v++)
        TRY(save_view(e, "input", s, s->frames[v], e->pixels + v * size));
    for (int64_t t = 0; t < s->targets; t++) {
        const int64_t frame = s->frames[s->inputs + t];
        TRY(save_view(e, "truth", s, frame, e->pixels + (s->inputs + t) * size));
        TRY(save_view(e, "render", s, frame, e->rendered + t * size));
    }
    return STATUS_OK;
}
