/* Private to nvs/camera_path.c and nvs/camera_around.c. */
#ifndef TTV_NVS_CAMERA_PATH_INTERNAL_H
#define TTV_NVS_CAMERA_PATH_INTERNAL_H

#include "nvs/camera_path.h"

/* camera_path() for PATH_SPIRAL and PATH_ORBIT. */
Status path_spiral(const PathOptions *o, const Camera *inputs, int64_t count, int64_t views,
                   Camera *out);
Status path_orbit(const PathOptions *o, const Camera *inputs, int64_t count, int64_t views,
                  Camera *out);

#endif
