/* The extension that starts compiled modules: start(capsule) -> module.
 *
 * mypyc puts the code of all modules into one library, which exports a start function for each of them. By default, an
 * extension of its own calls each start function. This one calls all of them. */
#include <Python.h>

static PyObject *start(PyObject *self, PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    PyObject *(*function)(void) = (PyObject *(*)(void))PyCapsule_GetPointer(capsule, name);
    if (function == NULL)
        return NULL;
    PyObject *module = function();
    Py_XINCREF(module); /* the library keeps a pointer to it, but no reference */
    return module;
}

static PyMethodDef methods[] = {
    {"start", start, METH_O, "Start the module whose start function is in this capsule."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "holdfast_core_loader", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit_holdfast_core_loader(void)
{
    return PyModuleDef_Init(&definition);
}
